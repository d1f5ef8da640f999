"""The driver's libraries: which ones the loader could find, and what stands in front of them."""

from collections.abc import Mapping
from pathlib import Path

from rl.doctor.schema import Libraries


def libraries(root: Path, environment: Mapping[str, str]) -> Libraries:
    """See `Libraries`."""
    return Libraries()
