"""Paths in the form that Spark requires."""

import re
from pathlib import Path

_PATTERN = re.compile(r"[][{}*?\\]")


def to_read(path: Path) -> str:
    """Escape a path for reading: Spark takes it as a glob pattern."""
    return _PATTERN.sub(r"\\\g<0>", str(path))
