"""The files of built pages, and their index page, which stands for every path of the application."""

import asyncio
import base64
import hashlib
import mimetypes
import os
import re
from pathlib import Path

from fairlead.core.errors import FixRequest
from fairlead.http import Response
from fairlead.ui.cache import INDEX, MANIFEST

# Files of a folder of pages, and bytes of one of them.
FILES_MAX = 10_000
FILE_BYTES_MAX = 32 << 20

# Files whose names change with their content.
IMMUTABLE = "/_app/immutable/"
_FOREVER = ("Cache-Control", "public, max-age=31536000, immutable")
_CHECKED = ("Cache-Control", "no-cache")
_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".ico": "image/vnd.microsoft.icon",
    ".woff2": "font/woff2",
    ".html": "text/html; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
_BASE = re.compile(r'base: ""')
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_HASH = re.compile(r"'sha256-[A-Za-z0-9+/=]+'")


class NoPages(FixRequest):
    """A folder has no built pages."""


class Assets:
    """Serves the files that a folder has when it is opened; requests can't name files outside the folder."""

    def __init__(self, folder: Path, *, public_path: str = "") -> None:
        """`public_path` is the path below which a browser sees the pages, such as /temporal; empty for the root."""
        self._files = dict(_files(folder))
        if f"/{INDEX}" not in self._files:
            raise NoPages(
                f"there is no {INDEX} in {folder}: give a folder with the built pages of Temporal's web UI, "
                "or run `fairlead ui fetch`"
            )
        self._index = _rebased(self._files.pop(f"/{INDEX}").read_text(encoding="utf-8"), public_path).encode()

    def __len__(self) -> int:
        return len(self._files)

    async def file(self, path: str) -> Response | None:
        """The file at a path such as /favicon.ico; None if there is none."""
        found = self._files.get(path)
        if found is None:
            return None
        try:
            content = await asyncio.to_thread(found.read_bytes)
        except OSError:
            return None
        kind = _TYPES.get(found.suffix) or mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        return Response(200, content, kind, (_FOREVER if path.startswith(IMMUTABLE) else _CHECKED,))

    def index(self) -> Response:
        """The page itself, whose script reads the path."""
        return Response(200, self._index, "text/html; charset=utf-8", (_CHECKED,))


def _files(folder: Path) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for place, _, names in os.walk(folder):
        for name in names:
            file = Path(place) / name
            path = f"/{file.relative_to(folder).as_posix()}"
            if path == f"/{MANIFEST}" or not file.is_file() or file.stat().st_size > FILE_BYTES_MAX:
                continue
            found.append((path, file))
            if len(found) > FILES_MAX:
                raise NoPages(f"{folder} has more than {FILES_MAX} files: give the folder of the built pages")
    return found


def _rebased(page: str, public_path: str) -> str:
    """The index page for a public path. The path changes the script, so its hash in the content security policy changes
    too.
    """
    if not public_path:
        return page
    page = page.replace('"/_app/', f'"{public_path}/_app/')
    page = _BASE.sub(f'base: "{public_path}"', page)
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in _INLINE_SCRIPT.findall(page)
    ]
    return _HASH.sub(" ".join(hashes), page, count=1) if hashes else page
