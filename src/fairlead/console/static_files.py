"""The style sheet, the script and the picture of the console."""

import hashlib
from functools import cache
from importlib import resources
from typing import Final

from fairlead.http import HttpFault, Response

# Files that can be asked for, with their types.
FILES: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
# The address has a hash of the content in it.
_FOREVER: Final = ("Cache-Control", "public, max-age=86400, immutable")


def static_file(path: str) -> Response:
    """The file at /static/<hash>/<name>."""
    name = path.rpartition("/")[2]
    if name not in FILES:
        raise HttpFault(404, "no such file")
    return Response(200, _read(name), FILES[name], (_FOREVER,))


@cache
def digest(name: str) -> str:
    """The beginning of the hash of a file's content."""
    return hashlib.sha256(_read(name)).hexdigest()[:12]


@cache
def _read(name: str) -> bytes:
    return (resources.files("fairlead.console") / "static" / name).read_bytes()
