"""The book: ``tox run -e docs`` builds it from the pages of this repository, with Sphinx.

The source folder is the repository itself, so that each link of a page leads here where it leads
on GitHub. Pages stay plain Markdown. What only the book has, its navigation and the reference of
the Python API, is put in while a page is read: a comment "<!-- book: NAME -->" stands for it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import portagpu

sys.path.insert(0, str(Path(__file__).parent))

import book

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "PortaGPU"
author = "the authors of PortaGPU"
version = release = portagpu.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/book/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "examples/**.md",
    "tests/README.md",
    "tests/recordings/README.md",
    *(f"tests/vendor_texts/{folder}/README.md" for folder in ("formats", "trace_recordings")),
]
exclude_patterns = [".*", "backends", "build", "matrix", "portagpu"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
smartquotes = False
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = "PortaGPU"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_extra_path = ["start"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
# a browser lets no page that is a file read another one
html_show_search_summary = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}


def setup(app: Sphinx) -> None:
    """Change each page as ``book.fill`` says when it is read."""
    app.connect("source-read", _fill)


def _fill(app: Sphinx, page: str, content: list[str]) -> None:
    content[0] = book.fill(content[0], Path(app.srcdir, page).parent)
