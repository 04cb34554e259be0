"""Every path, link, command, flag, setting and symbol that a document names exists."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from fairlead.cli.commands import cli
from fairlead.settings.dynamic.catalogue import SETTINGS
from fairlead.settings.problem import SettingWithoutEffect

ROOT = Path(__file__).parents[2]
# A release's notes name what was there then; the others are generated, and have tests of their own.
LEFT_OUT = {"CHANGELOG.md", "docs/settings.md", "docs/metrics.md", "docs/compatibility.md", "docs/tables.md"}
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if str(page.relative_to(ROOT)) not in LEFT_OUT
)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?:src|tests|docs|examples|benchmarks|scripts|\.github|\.ci)/[\w./-]+")
SYMBOL = re.compile(r"[A-Za-z]\w*(?:_\w+|[a-z][A-Z]\w*)|_\w+")


class Page(NamedTuple):
    """The text of a page: its words without code blocks, and the lines of its code blocks."""

    words: str
    code: tuple[str, ...]


@functools.cache
def page_of(name: str) -> Page:
    words: list[str] = []
    code: list[str] = []
    is_code = False
    for line in (ROOT / name).read_text().splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        else:
            (code if is_code else words).append(line)
    return Page("\n".join(words), tuple(code))


def spans(name: str) -> list[str]:
    return SPAN.findall(page_of(name).words)


@pytest.mark.parametrize("name", PAGES)
def test_every_path_exists(name: str) -> None:
    paths = {path.rstrip(".") for span in spans(name) for path in PATH.findall(span) if span.startswith(path[:3])}
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def slugs(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_has_a_target(name: str) -> None:
    missing = []
    for link in LINK.findall(page_of(name).words):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        file = (ROOT / name).parent / target if target else ROOT / name
        if not file.exists() or (anchor and anchor not in slugs(file)):
            missing.append(link)
    assert missing == []


def commands(name: str) -> Iterator[list[str]]:
    """The words of each `fairlead` command that a page shows, up to a pipe or a comment."""
    page = page_of(name)
    for text in (*SPAN.findall(page.words), *page.code):
        found = re.match(r"(?:\.venv/bin/|\$ )?fairlead (?=[a-z-])(.*)", text.strip())
        if found:
            yield re.split(r"\s(?:#|&&|\||>|&)(?:\s|$)|\"?\$\(", found[1])[0].replace("'", "").replace('"', "").split()


def problems_of(words: list[str]) -> Iterator[str]:
    """Subcommands and flags of a command that do not exist."""
    command: click.Command = cli
    context = click.Context(cli)
    for position, word in enumerate(words):
        if not isinstance(command, click.Group):
            break
        if word.startswith("-") or not re.fullmatch(r"[a-z|-]+", word):
            break
        several = [command.get_command(context, each) for each in word.split("|")]
        if None in several:
            yield f"fairlead {' '.join(words[: position + 1])}"
            return
        command = several[0] or command
        context = click.Context(command, parent=context, info_name=word)
    known = {option for each in (command, cli) for parameter in each.params for option in parameter.opts}
    parent = context.parent
    while parent is not None:
        known |= {option for parameter in parent.command.params for option in parameter.opts}
        parent = parent.parent
    known |= {option for parameter in command.params for option in parameter.secondary_opts} | {"--help", "--version"}
    for word in words:
        flag = word.partition("=")[0].rstrip(",;.)")
        if re.fullmatch(r"--?[a-z][a-zA-Z_-]*", flag) and flag not in known:
            yield f"{flag} of fairlead {' '.join(words)}"


@pytest.mark.parametrize("name", PAGES)
def test_every_command_and_flag_exists(name: str) -> None:
    assert [problem for words in commands(name) for problem in problems_of(words)] == []


def test_a_missing_command_and_flag_are_found() -> None:
    assert list(problems_of(["admin", "nothing"])) == ["fairlead admin nothing"]
    assert list(problems_of(["config", "list", "--nothing", "x"])) == ["--nothing of fairlead config list --nothing x"]
    assert list(problems_of(["admin", "key", "create|list", "--config", "x"])) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_make_target_and_module_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    page = page_of(name)
    texts = (*SPAN.findall(page.words), *page.code)
    made = {word for text in texts for words in re.findall(r"^make ([a-z|-]+)", text) for word in words.split("|")}
    modules = {module for text in texts for module in re.findall(r"python -m (benchmarks[\w.]+|tests[\w.]+)", text)}
    assert made <= targets
    there = {module for module in modules if (ROOT / f"{module.replace('.', '/')}.py").exists()}
    assert modules - there == set()


# Keys below another key that the text names: `global.tls`.
RELATIVE = frozenset({"frontend.hostOverrides"})
STATIC = re.compile(r"`([\w.]+(?:`, `[\w.]+)*)`")


@functools.cache
def static_keys() -> frozenset[str]:
    """Keys of the static configuration, from the guides whose tables a test compares with the code."""
    text = (ROOT / "docs/operations.md").read_text() + (ROOT / "docs/security.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return frozenset(key for row in rows for keys in STATIC.findall(row) for key in keys.split("`, `"))


def is_setting(key: str) -> bool:
    try:
        SETTINGS.find(key)
    except SettingWithoutEffect:
        return True
    except Exception:  # noqa: BLE001 - an unknown key
        return key in static_keys() or any(known.startswith(f"{key}.") for known in static_keys())
    return True


@pytest.mark.parametrize("name", PAGES)
def test_every_dynamic_setting_exists(name: str) -> None:
    keys = {
        span
        for span in spans(name)
        if re.fullmatch(r"(?:matching|limit|system|frontend|worker)\.[a-z]\w*(?:\.\w+)*", span)
    }
    modules = {key for key in keys if (ROOT / "src/fairlead" / f"{key.replace('.', '/')}.py").exists()}
    files = {key for key in keys if key.endswith((".py", ".yaml"))}
    assert sorted(key for key in keys - modules - files - RELATIVE if not is_setting(key)) == []


@functools.cache
def code() -> str:
    folders = ("src", "tests", "benchmarks", "examples", "scripts", ".github")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    files = [file for file in files if file.suffix in {".py", ".sql", ".yml", ".html", ".js", ""}]
    generated = [ROOT / page for page in sorted(LEFT_OUT - {"CHANGELOG.md"})]
    others = [ROOT / "pyproject.toml", ROOT / "Makefile", *generated]
    checks = {Path(__file__), Path(__file__).with_name("test_spans.py")}
    return "\n".join(file.read_text(errors="ignore") for file in (*files, *others) if file not in checks)


@functools.cache
def known_words() -> frozenset[str]:
    stems = {file.stem for folder in ("src", "tests", "benchmarks") for file in (ROOT / folder).rglob("*")}
    return frozenset(re.findall(r"\w+", code())) | stems


# Names of other programs and other languages' SDKs, parts of formulas, and endings of column names.
FOREIGN = frozenset(
    (
        *("SO_REUSEPORT", "LookupN", "reproduce_failure", "queue_name"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"),
        *("ExistingPath", "TestServer", "TestWorkflowEnvironment"),
        "createTimeSkipping",
        "WorkflowExecutionTimeSkippingTransitioned",
        *("L_i", "B_i", "P_i", "L_0", "L_", "_i", "_p50", "_p95", "_p99", "_partial"),
    )
)


@pytest.mark.parametrize("name", PAGES)
def test_every_symbol_occurs_in_the_code(name: str) -> None:
    symbols = {symbol for span in spans(name) for symbol in SYMBOL.findall(span)}
    assert sorted(symbols - known_words() - FOREIGN) == []
