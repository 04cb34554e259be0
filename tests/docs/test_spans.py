"""Every word in backticks names something that is there: a file, a module, an attribute, a flag, a setting, a URL."""

import ast
import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator

import click
import pytest
import yaml

from fairlead.cli.commands import cli
from fairlead.console.views import VIEWS
from tests.docs.test_names import FOREIGN, PAGES, ROOT, code, is_setting, known_words, problems_of

SOURCE = ROOT / "src" / "fairlead"
SPANNED = [*PAGES, "CHANGELOG.md"]
# A span may continue on the next line of its paragraph.
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
WORD = re.compile(r"[A-Za-z_]\w{2,}")
DOTTED = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(?:\.\w+)+")
FLAG = re.compile(r"--[a-z][\w-]*")
URL = re.compile(r"/(?!_sys)[a-z][^\s?…<>]*")
# Folders, a program, and a path of Temporal's server; with those of Temporal's messages.
FOREIGN_URLS = frozenset({"/proc", "/usr/bin/time", "/auth/sso", "/cluster/namespaces"})

# Words of other programs, of formulas, and of a reader's own files.
FOREIGN_WORDS = frozenset(
    (
        *("mod", "coverage", "m30s", "activate", "compileall", "Extras", "Grpc", "T09", "zstdcat", "vacuum"),
        *("Factory", "crt", "sslmode", "sslrootcert", "approve", "CSRF", "auth", "sso"),
        *("announcements", "handing_over", "reapplying", "sweeping"),
        *("payload_codec", "failure_converter_class", "decrypt", "encrypt", "groupBy", "getOrCreate", "pysail"),
    )
)
FOREIGN_FLAGS = frozenset(
    (
        *("--branch", "--source", "--hook-type", "--codec-endpoint", "--enable-time-skipping"),
        *("--active-cluster", "--promote-global", "--frontend-address", "--enable", "--enable-connection"),
        *("--enable-replication", "--tls-"),
    )
)
# Media types, a namespace, repositories, and files that a command writes.
FOREIGN_PATHS = frozenset(
    (
        *("application/json", "a/b", "fairlead/ui", "temporalio/ui", "fairlead-demo/report.html", "CLUSTER/SEGMENT"),
        *("DIR/CLUSTER/history.v1.HOST.NUMBER.jsonl.zst", "DIR/CLUSTER/task.v1.HOST.NUMBER.jsonl.zst"),
        *("journal/manifest.json", "lake/_namespaces.json", "lake/_quarantine", "lake/_stream"),
    )
)
FILE_ENDINGS = frozenset({"py", "md", "toml", "yaml", "json", "html", "db", "crt", "key", "png", "lock"})
# A reader's files, and files that a command writes or the server serves.
FOREIGN_FILES = frozenset(
    (
        *("tls.crt", "tls.key", "ca.crt", "ca.key", "FILE.png", "tutorial.db", "fairlead.db", "order.py", "approve.py"),
        *(
            "home.json",
            "history.json",
            "_batch.json",
            "_origin.json",
            "manifest.json",
            "_namespaces.json",
            "repair_plan.json",
        ),
        *("openapi.yaml", "swagger.json"),
    )
)
# Names of other packages, of Temporal's messages and methods, and of variables in the text.
FOREIGN_NAMES = frozenset(
    (
        *("grpc.aio", "pytest.mark.sim", "uuid.uuid4", "Client.connect", "TestWorkflowEnvironment.createTimeSkipping"),
        *("env.auto_time_skipping_disabled", "env.get_current_time", "env.sleep", "handle.result", "execution.runId"),
        *("temporal.api.export.v1.WorkflowExecutions", "history.Call", "matching.Add", "matching.Poll"),
        *("package.module", "b.example", "history.v1.HOST.NUMBER.jsonl.zst", "task.v1.HOST.NUMBER.jsonl.zst"),
        *("server.address", "server.connect", "temporalio.testing.TimeSkipper", "spark.sql.shuffle.partitions"),
        # Loggers before their new names.
        *("history.announcements", "history.handing_over", "history.reapplying", "history.sweeping"),
        # Groups of entry points.
        *("fairlead.authorizers", "fairlead.claim_mappers"),
    )
)


@functools.cache
def spans(name: str) -> tuple[str, ...]:
    text = FENCED.sub("", (ROOT / name).read_text())
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\|))", text)
    return tuple(" ".join(span.split()) for paragraph in paragraphs for span in SPAN.findall(paragraph))


def blocks(name: str, *languages: str) -> list[str]:
    found = FENCED.findall((ROOT / name).read_text())
    return [text for language, text in found if language in languages]


def unknown_words(span: str) -> set[str]:
    return set(WORD.findall(span)) - known_words() - FOREIGN - FOREIGN_WORDS


@pytest.mark.parametrize("name", SPANNED)
def test_every_word_in_backticks_occurs_in_the_code(name: str) -> None:
    assert sorted(set().union(*map(unknown_words, spans(name)))) == []


def missing_paths(span: str) -> Iterator[str]:
    for word in re.split(r"[\s,|]+", span):
        path = word.strip("()").rstrip(".,:;/")
        if not re.fullmatch(r"[\w.-]+(?:/[\w.-]+)+", path) or path.startswith("."):
            continue
        roots = (ROOT, SOURCE, *(folder for folder in SOURCE.iterdir() if folder.is_dir()))
        if path not in FOREIGN_PATHS and not any(
            (root / f"{path}{ending}").exists() for root in roots for ending in ("", ".py")
        ):
            yield path


@pytest.mark.parametrize("name", SPANNED)
def test_every_path_in_backticks_exists(name: str) -> None:
    assert sorted({path for span in spans(name) for path in missing_paths(span)}) == []


@functools.cache
def classes() -> dict[str, set[str]]:
    """The names in the body of each class of ours, with those of its bases and those set on `self`; by class name."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                names |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                names |= {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
                own.setdefault(node.name, set()).update(names)
                bases.setdefault(node.name, set()).update(each.id for each in node.bases if isinstance(each, ast.Name))

    def with_bases(name: str) -> set[str]:
        return own.get(name, set()).union(*map(with_bases, bases.get(name, set()) - {name}))

    return {name: with_bases(name) for name in own}


@functools.cache
def packages() -> dict[str, list[str]]:
    """The modules of ours by the last part of their name."""
    found: dict[str, list[str]] = {}
    for folder, prefix in ((SOURCE, "fairlead."), (ROOT / "benchmarks", "benchmarks."), (ROOT / "tests", "tests.")):
        for file in folder.rglob("*.py"):
            parts = file.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if parts:
                found.setdefault(parts[-1], []).append(prefix + ".".join(parts))
    return found


def is_there(module: str, rest: list[str]) -> bool:
    """Whether a module, or an attribute of it, has this name."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        return False
    if not rest or hasattr(found, rest[0]):
        return len(rest) < 2 or is_there(f"{module}.{rest[0]}", rest[1:]) or hasattr(getattr(found, rest[0]), rest[1])
    return is_there(f"{module}.{rest[0]}", rest[1:])


@functools.cache
def static_words() -> frozenset[str]:
    """The strings in the modules that read the static configuration: keys are among them."""
    files = (SOURCE / "settings" / "static").glob("*.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_key(dotted: str) -> bool:
    """Whether this is a dynamic setting, or a key of the static configuration, maybe below another key."""
    return is_setting(dotted) or set(dotted.split(".")) <= static_words()


@functools.cache
def loggers() -> frozenset[str]:
    return frozenset(re.findall(r'get_log\("([^"]+)"\)', code()))


def is_file(name: str) -> bool:
    return any(any((ROOT / folder).rglob(name)) for folder in ("tests", "docs", "examples", "benchmarks"))


def missing_names(span: str) -> Iterator[str]:
    for dotted in set(DOTTED.findall(span)) - FOREIGN_NAMES - FOREIGN_FILES:
        first, *rest = dotted.split(".")
        if first in ("fairlead", "benchmarks", "tests"):
            is_known = is_there(first, rest)
        elif rest[-1] in FILE_ENDINGS:
            is_known = any(ROOT.glob(dotted)) or any(SOURCE.rglob(dotted)) or is_file(dotted)
        elif first in classes():
            is_known = rest[0] in classes()[first]
        else:
            modules = packages().get(first, [])
            is_known = is_key(dotted) or dotted in loggers() or any(is_there(module, rest) for module in modules)
        if not is_known:
            yield dotted


@pytest.mark.parametrize("name", SPANNED)
def test_every_dotted_name_in_backticks_exists(name: str) -> None:
    assert sorted({dotted for span in spans(name) for dotted in missing_names(span)}) == []


@functools.cache
def flags() -> frozenset[str]:
    """The flags of all commands."""
    found = {"--help"}

    def collect(command: click.Command) -> None:
        found.update(option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts))
        if isinstance(command, click.Group):
            for each_name in command.list_commands(click.Context(command)):
                each = command.get_command(click.Context(command), each_name)
                if each is not None:
                    collect(each)

    collect(cli)
    # Those of the benchmarks.
    return frozenset(found | set(re.findall(r'"(--[a-z-]+)"', code())))


def missing_flags(span: str) -> set[str]:
    return set(FLAG.findall(span)) - flags() - FOREIGN_FLAGS


@pytest.mark.parametrize("name", SPANNED)
def test_every_flag_in_backticks_exists(name: str) -> None:
    assert sorted(set().union(*map(missing_flags, spans(name)))) == []


def missing_urls(span: str) -> Iterator[str]:
    """Paths of our HTTP servers that none of them serves."""
    found = URL.match(span)
    if found is not None and found[0] not in FOREIGN_URLS:
        url = found[0]
        if url.startswith("/console/"):
            paths = {view.path for view in VIEWS} | {f"{view.path}/page" for view in VIEWS} | {"home"}
            is_known = url.removeprefix("/console/").removesuffix(".json") in paths
        else:
            is_known = re.search(rf"{re.escape(url.removeprefix('/api/v1').rstrip('/'))}(?!\w)", code()) is not None
        if not is_known:
            yield url


@pytest.mark.parametrize("name", SPANNED)
def test_every_url_in_backticks_is_served(name: str) -> None:
    assert [url for span in spans(name) for url in missing_urls(span)] == []


def nodes_of(program: str) -> list[ast.AST]:
    """All nodes of a program; it may be a fragment that uses `await`."""
    lines = "\n".join(f"    {line}" for line in program.splitlines())
    return list(ast.walk(ast.parse(f"async def page():\n{lines}\n    ...")))


def defined_in(program: str) -> Iterator[str]:
    for node in nodes_of(program):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def missing_imports(program: str, defined: Collection[str] = ()) -> Iterator[str]:
    """Imports of a program that fail, and attributes that occur neither in the code nor in `defined`."""
    for node in nodes_of(program):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ("fairlead", "temporalio"):
            module = importlib.import_module(str(node.module))
            yield from (alias.name for alias in node.names if not hasattr(module, alias.name))
        elif isinstance(node, ast.Attribute) and node.attr not in known_words() | FOREIGN_WORDS | set(defined):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg is not None and node.arg not in known_words() | FOREIGN_WORDS:
            yield node.arg


@pytest.mark.parametrize("name", PAGES)
def test_every_program_of_a_page_imports_what_exists(name: str) -> None:
    programs = blocks(name, "python")
    defined = {found for program in programs for found in defined_in(program)}
    assert [fault for program in programs for fault in missing_imports(program, defined)] == []


def missing_keys(document: object) -> Iterator[str]:
    """Keys of a configuration in a page that no module reads."""
    if isinstance(document, dict):
        for key, value in document.items():
            if not (is_setting(str(key)) or set(re.split(r"[.:-]", str(key))) <= known_words()):
                yield str(key)
            yield from missing_keys(value)
    elif isinstance(document, list):
        for each in document:
            yield from missing_keys(each)


@pytest.mark.parametrize("name", PAGES)
def test_every_key_of_a_configuration_in_a_page_exists(name: str) -> None:
    documents = [document for block in blocks(name, "yaml") for document in yaml.safe_load_all(block)]
    assert [key for document in documents for key in missing_keys(document)] == []


def shell_commands(text: str) -> Iterator[list[str]]:
    """The words of each `fairlead` command in a block, with its continuation lines."""
    for line in text.replace("\\\n", " ").splitlines():
        found = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/bin/)?fairlead (?=[a-z-])(.*)", line.strip())
        if found:
            words = re.split(r"\s(?:#|&&|\||>|&)(?:\s|$)|\"?\$\(", found[1])[0]
            yield words.replace("'", "").replace('"', "").split()


@pytest.mark.parametrize("name", PAGES)
def test_every_command_in_a_block_exists_with_its_flags(name: str) -> None:
    commands = [words for block in blocks(name, "", "sh", "console", "text") for words in shell_commands(block)]
    assert [problem for words in commands for problem in problems_of(words)] == []


@pytest.mark.parametrize(
    ("check", "text", "fault"),
    [
        (unknown_words, "Partitoin", "Partitoin"),
        (missing_paths, "core/errorz.py", "core/errorz.py"),
        (missing_paths, "partition/backlogg", "partition/backlogg"),
        (missing_names, "fairlead.client.conect", "fairlead.client.conect"),
        (missing_names, "Dispatcher.reserved_never", "Dispatcher.reserved_never"),
        (missing_names, "history.maximumNothing", "history.maximumNothing"),
        (missing_names, "ui.lakes", "ui.lakes"),
        (missing_names, "laptops.yaml", "laptops.yaml"),
        (missing_flags, "--dry-runs", "--dry-runs"),
        (missing_urls, "/console/workflowz?query=...", "/console/workflowz"),
        (missing_urls, "/healthzz", "/healthzz"),
        (missing_imports, "from fairlead.client import conect", "conect"),
        (missing_imports, "await client.addz(1)", "addz"),
        (missing_imports, "client.add(fairnes_key=1)", "fairnes_key"),
        (missing_keys, {"store": {"sqlight": 1}}, "sqlight"),
    ],
)
def test_a_name_that_does_not_exist_is_found(
    check: Callable[[object], Iterable[str]], text: object, fault: str
) -> None:
    assert list(check(text)) == [fault]


def test_a_flag_on_a_continuation_line_is_found() -> None:
    (words,) = shell_commands("$ fairlead config list \\\n    --nothing x\n")
    assert list(problems_of(words)) == ["--nothing of fairlead config list --nothing x"]
