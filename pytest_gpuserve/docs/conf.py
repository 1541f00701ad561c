"""Sphinx builds a site of these pages: ``python -m sphinx pytest_gpuserve/docs site`` (extra ``docs``)."""

project = "pytest-gpuserve"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "pytest-gpuserve"
myst_heading_anchors = 3
# Links to the repository's files outside of the pages: they are read where the code is hosted.
suppress_warnings = ["myst.xref_missing"]
exclude_patterns = ["llms.txt"]
