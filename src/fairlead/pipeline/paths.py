"""Paths as Spark must be given them."""

import re
from pathlib import Path

_PATTERN = re.compile(r"[][{}*?\\]")


def to_read(path: Path) -> str:
    """The path under which Spark reads this very folder: what it is given to read, it takes for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", str(path))
