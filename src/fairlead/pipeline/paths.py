"""Paths in the form that Spark requires."""

import re
from pathlib import Path

_PATTERN = re.compile(r"[][{}*?\\]")


def to_read(path: Path) -> str:
    """Escape the path, because Spark interprets paths to read as glob patterns."""
    return _PATTERN.sub(r"\\\g<0>", str(path))
