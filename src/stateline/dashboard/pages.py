"""HTML of the views, by templates: the pages of the server, and the report that is one file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

import jinja2

from stateline.dashboard.roots import RootView
from stateline.dashboard.views import checkpoints_view, figure_differences, outputs_view, state_view, time_view
from stateline.handles import SectionIdentity
from stateline.state.plain_values import time_text
from stateline.state.run_index import RunIndex

__all__ = ["asset", "render", "report_page"]

_PACKAGE: Final = "stateline.dashboard"
_ASSETS: Final = {"dashboard.css": "text/css", "dashboard.js": "text/javascript"}

_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.PackageLoader(_PACKAGE),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals["moment"] = time_text


def render(template: str, **values: Any) -> str:
    """A page. All that is not ``Markup`` is escaped."""
    return _TEMPLATES.get_template(template).render(values)


def asset(name: str) -> tuple[str, str] | None:
    """The text and the type of a file that pages refer to; ``None`` if there is no such file."""
    if name not in _ASSETS:
        return None
    text = resources.files(_PACKAGE).joinpath("static").joinpath(name).read_text(encoding="utf-8")
    return text, _ASSETS[name]


def report_page(
    view: RootView, last: int | None = None, indexes: Mapping[SectionIdentity, RunIndex] | None = None
) -> str:
    """All views of a root as one file, which needs no server and no network.

    Args:
        view: The root.
        last: How many of the newest checkpoints; ``None`` for all of the history.
        indexes: Those of the runs of the newest checkpoint that are known.
    """
    style, script = (resources.files(_PACKAGE).joinpath("static").joinpath(name).read_text("utf-8") for name in _ASSETS)
    pair = view.summaries[-2:] if len(view.summaries) > 1 else None
    return render(
        "report.html",
        view=view,
        home="#",
        style=style,
        script=script,
        checkpoints=checkpoints_view(view, last),
        state=state_view(view, last, indexes),
        time=time_view(view, last),
        outputs=outputs_view(view, last),
        figures=None if pair is None else figure_differences(*pair),
        before=pair[0].checkpoint_id if pair else None,
        after=pair[1].checkpoint_id if pair else None,
    )
