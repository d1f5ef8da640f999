"""Reading files that may be absent, hidden or masked."""

from pathlib import Path


def text_of(path: Path) -> str:
    """The file's text, or nothing."""
    try:
        return path.read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""
