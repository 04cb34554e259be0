"""Section `ui` of the static configuration: the web page."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from fairlead.settings.dynamic.kinds import Plain
from fairlead.settings.problem import InvalidValue
from fairlead.settings.static.section import Section
from fairlead.settings.static.store import parse_file_name

A = TypeVar("A", bound=tuple[str, int])

PATH_CHARACTERS_MAX = 200
URL_CHARACTERS_MAX = 2_000
# Only these characters: the path is written into an HTML page.
_PUBLIC_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+)*/?", re.ASCII)


@dataclass(frozen=True, slots=True)
class UiConfig:
    """Where the web page listens, and its options.

    `asset_path` is the folder of the built pages; None: the newest ones that `fairlead ui fetch` has fetched. `lake` is
    the folder of the lake whose report the console shows; it need not exist yet.
    """

    host: str
    port: int
    asset_path: Path | None = None
    public_path: str = ""
    codec_endpoint: str = ""
    lake: Path | None = None


def read_ui(ui: Section, folder: Path, parse_address: Callable[[Plain], A]) -> UiConfig | None:
    """Read the section `ui`; None without an address."""
    listen = ui.value("listen", parse_address, None)
    assets = ui.value("assetPath", parse_file_name, None)
    public_path = ui.value("publicPath", parse_public_path, "")
    codec_endpoint = ui.value("codecEndpoint", parse_codec_endpoint, "")
    lake = ui.value("lake", parse_file_name, None)
    if ui.is_given and not ui.given("listen"):
        ui.complain_here("has no listen: give the address of the web page, say 127.0.0.1:8233")
    ui.close()
    if listen is None:
        return None
    return UiConfig(
        listen[0],
        listen[1],
        folder / assets if assets else None,
        public_path,
        codec_endpoint,
        folder / lake if lake else None,
    )


def parse_public_path(raw: Plain) -> str:
    """Read a path such as /temporal; without a slash at its end."""
    if not isinstance(raw, str) or len(raw) > PATH_CHARACTERS_MAX or not _PUBLIC_PATH.fullmatch(raw):
        raise InvalidValue("is not a path: write it like /temporal, with letters, digits and _.~-")
    return raw.rstrip("/")


def parse_codec_endpoint(raw: Plain) -> str:
    """Read the URL of a codec server."""
    if isinstance(raw, str) and len(raw) <= URL_CHARACTERS_MAX and raw.isascii() and raw.isprintable():
        try:
            parts = urlsplit(raw)
        except ValueError:
            parts = None
        if parts is not None and parts.scheme in {"http", "https"} and parts.netloc:
            return raw
    raise InvalidValue("is not a URL: write it like https://codec.example.com")
