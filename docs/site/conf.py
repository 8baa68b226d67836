"""How Sphinx builds the site. :mod:`docs.site` calls it."""

import os

from sphinx.application import Sphinx

from docs.site.docstrings import restructured

project = "Stateline"
author = "The Stateline authors"
copyright = author  # noqa: A001 - Sphinx's name

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["**.ipynb_checkpoints"]

# Every name in a docstring resolves, which tests/arch checks; many of them are of modules that are no page here.
nitpicky = False
suppress_warnings = ["ref.python"]  # Two packages may offer one class; either will do.

myst_heading_anchors = 4
myst_enable_extensions: list[str] = []
# Notebooks are kept without outputs. They run where pictures are wanted, and only if they or their code have changed.
nb_execution_mode = os.environ.get("STATELINE_DOCS_NOTEBOOKS", "off")
nb_execution_cache_path = os.environ.get("STATELINE_DOCS_CACHE", "")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
nb_output_stderr = "remove"  # Logs of the JVM; an error fails the build.

toc_object_entries_show_parents = "hide"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # Fields of a class are told in its own docstring, and once.

html_theme = "furo"
html_title = "Stateline"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "source_repository": "https://github.com/stateline/stateline/",
    "source_branch": "main",
    "light_css_variables": {"color-brand-primary": "#0b5c8a", "color-brand-content": "#0b5c8a"},
    "dark_css_variables": {"color-brand-primary": "#6cb8e6", "color-brand-content": "#6cb8e6"},
    "top_of_page_buttons": [],
}
copybutton_prompt_text = "$ "


def setup(app: Sphinx) -> None:
    """Docstrings are made reStructuredText before anything else reads them."""
    app.connect("autodoc-process-docstring", _restructure, priority=100)


def _restructure(_app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    lines[:] = restructured(lines)
    if what in {"attribute", "data", "property"} and lines:
        lines[0] = lines[0].replace(": ", " \N{EN DASH} ")  # Before a colon there, napoleon expects a type.
