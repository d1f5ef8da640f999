"""The site: `make docs` builds it into build/docs. All pages but api.rst are for GitHub, too."""

import dataclasses
import os
import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
sys.path[:0] = [str(REPO), str(HERE)]  # autodoc is to show the rl of this very clone

from generate import field_comments  # noqa: E402

project = html_title = "pytorch-cuda-rl"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False  # LICENSE has it
extensions = ["myst_parser", "sphinx.ext.autodoc"]

myst_heading_anchors = 3  # a heading has the anchor that GitHub gives it, which links between pages name

default_role = "code"  # docstrings are plain text, their `names` in single backquotes
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
nitpick_ignore_regex = [("py:.*", r"(?!rl\.).*")]  # other packages' types, whose pages would need a network
nitpick_ignore = [  # of the inside of rl, named in signatures
    ("py:class", "rl.loop.Loop"),
    ("py:class", "rl.envs.halves.Halves"),
    ("py:class", "rl.accelerate.Descent"),
]
linkcheck_ignore = [r"\.\./"]  # files of this repository, which every build looks for


def link_files(_: Sphinx, page: nodes.document) -> None:
    """Links out of docs/ lead to no page of the site: to GitHub, where that builds it, else to the file itself."""
    in_github = os.environ.get("GITHUB_REPOSITORY")
    root = f"https://github.com/{in_github}/blob/{os.environ['GITHUB_SHA']}" if in_github else "../.."
    for kind in (addnodes.download_reference, addnodes.pending_xref):
        for link in list(page.findall(kind)):
            target = link["reftarget"]
            if target.startswith(f"{REPO}/"):  # how MyST hands on the name of a page, without its .md
                target = f"../{target.removeprefix(f'{REPO}/')}.md"
            if target.startswith("../"):
                path = target.removeprefix("../")
                if not (REPO / path.partition("#")[0]).exists():
                    logging.getLogger(__name__).warning("a link to %s, which is not there", path, location=link)
                link.replace_self(nodes.reference("", "", *link.children, refuri=f"{root}/{path}"))


def as_rst(_: Sphinx, what: str, name: str, subject: object, options: object, lines: list[str]) -> None:
    """A docstring as reStructuredText; that of a dataclass goes on with the comments on its fields."""
    text = []
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("    ") and not before.strip():  # an equation keeps its lines
            text += [".. code-block:: text", ""]
        text.append(plain(line))
    if isinstance(subject, type) and (dataclasses.is_dataclass(subject) or hasattr(subject, "_fields")):
        text += [f"* `{field}`: {plain(comment)}" for field, comment in field_comments(subject).items() if comment]
        text.append("")
    lines[:] = text


def plain(text: str) -> str:
    """Bars and stars are no markup, but for the star before an item of a list."""
    parts = re.split("(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"(\||\*(?! ))", r"\\\1", part) for part in parts)


def skip_aliases(_: Sphinx, what: str, name: str, subject: object, skip: bool, options: object) -> bool | None:
    """The fields of a NamedTuple have a docstring of Python's, which says nothing."""
    return True if (subject.__doc__ or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("doctree-read", link_files, priority=100)  # before Sphinx takes links to files for downloads
    app.connect("autodoc-process-docstring", as_rst)
    app.connect("autodoc-skip-member", skip_aliases)
