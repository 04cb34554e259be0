"""The folder of pages that `fairlead ui fetch` has fetched: one folder per version."""

import json
import os
import re
from pathlib import Path

# File in a folder of pages that says which version they are.
MANIFEST = "fairlead-ui.json"
INDEX = "index.html"

_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}", re.ASCII)


def cache_folder() -> Path:
    """The user's folder for fetched pages; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fairlead" / "ui"


def fetched_pages() -> Path | None:
    """The folder of the newest version that was fetched; None if there is none."""
    try:
        found = [folder for folder in cache_folder().iterdir() if _VERSION.fullmatch(folder.name)]
    except (OSError, RuntimeError):
        # No such folder, or a user without a home.
        return None
    complete = [folder for folder in found if (folder / INDEX).is_file() and (folder / MANIFEST).is_file()]
    return max(complete, key=lambda folder: [int(part) for part in folder.name.split(".")], default=None)


def version_of(folder: Path) -> str | None:
    """Version of the pages in a folder; None if it is unknown."""
    try:
        version = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else None
