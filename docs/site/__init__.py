"""The documentation as a site: ``python -m docs.site`` builds it, and any warning is an error.

:mod:`docs.site.navigation` reads which pages there are from ``docs/README.md``. :mod:`docs.site.sources` puts them
into one folder for Sphinx, with links that lead where the site has them. :mod:`docs.site.api_pages` adds the reference
of the public packages from their docstrings. ``docs/decisions/0064-documentation-site.md`` says why it is so.
"""
