"""The import contracts hold, and each of them can fail: on the real import graph, with one import or module planted."""

import re
import runpy
from collections import Counter
from collections.abc import Collection, Iterator
from copy import deepcopy
from pathlib import Path

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

PROJECT = Path(__file__).parents[1]
CONTRACTS = {"forbidden": ForbiddenContract, "layers": LayersContract}

PURE = "The core is pure"
DOWNWARD = "Data flows down"
SIDE_BY_SIDE = "Within the core"
WITHIN_HISTORY = "Within history"
FRONTEND_OF_HISTORY = "The frontend calls history through its client and messages"
HISTORY_CLIENT = "Replication knows history by its client and messages"
CODES_AT_THE_EDGE = "Services raise and catch error classes"
ONE_TRANSPORT = "Servers and clients have one transport"


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("fairlead", include_external_packages=True, cache_dir=None)


def broken_contracts(
    imports: grimp.ImportGraph, *, importer: str = "", imported: str = "", new_module: str = ""
) -> set[str]:
    """The names of the contracts that a planted import or module breaks, each up to its colon or comma."""
    graph = deepcopy(imports)
    if imported:
        assert importer in graph.modules, importer
        if imported not in graph.modules:
            graph.add_module(imported, is_squashed=not imported.startswith("fairlead"))
        graph.add_import(importer=importer, imported=imported, line_number=1, line_contents=f"import {imported}")
    if new_module:
        graph.add_module(new_module)
    configuration = read_configuration(str(PROJECT / "pyproject.toml"))
    broken = set()
    for options in configuration["contracts_options"]:
        contract = CONTRACTS[options["type"]](
            name=options["name"], session_options=configuration["session_options"], contract_options=options
        )
        if not contract.check(deepcopy(graph), verbose=False).kept:
            broken.add(options["name"].split(":")[0].split(",")[0])
    return broken


def test_the_project_keeps_every_contract(imports: grimp.ImportGraph) -> None:
    assert broken_contracts(imports) == set()


@pytest.mark.parametrize("module", ["asyncio", "time", "random", "os", "threading", "sqlite3", "grpc"])
def test_the_core_may_not_import_a_forbidden_module(imports: grimp.ImportGraph, module: str) -> None:
    """FL-78."""
    assert broken_contracts(imports, importer="fairlead.core.scaling.scaler", imported=module) == {PURE}


@pytest.mark.parametrize(
    "importer",
    ["rpc.client.channel", "replication.grpc_remote", "cli.main", "testing.clusters", "http.server", "ui.app"],
)
@pytest.mark.parametrize("module", ["grpc", "grpc_health", "grpc_reflection"])
def test_there_is_one_transport(imports: grimp.ImportGraph, importer: str, module: str) -> None:
    broken = broken_contracts(imports, importer=f"fairlead.{importer}", imported=module)
    is_service = importer.startswith("replication") and module == "grpc"
    assert broken == ({ONE_TRANSPORT, CODES_AT_THE_EDGE} if is_service else {ONE_TRANSPORT})


def test_the_contract_of_the_transport_names_every_package_but_the_core_and_the_pipeline(
    imports: grimp.ImportGraph,
) -> None:
    contracts = read_configuration(str(PROJECT / "pyproject.toml"))["contracts_options"]
    (options,) = (each for each in contracts if each["name"].startswith(ONE_TRANSPORT))
    others = {"fairlead.core", "fairlead.pipeline"}
    assert set(options["source_modules"]) == imports.find_children("fairlead") - others


def test_the_core_may_not_import_other_packages(imports: grimp.ImportGraph) -> None:
    broken = broken_contracts(imports, importer="fairlead.core.partitions.tree", imported="fairlead.cli")
    assert DOWNWARD in broken


def test_a_new_package_must_be_placed_deliberately(imports: grimp.ImportGraph) -> None:
    assert broken_contracts(imports, new_module="fairlead.newthing") == {DOWNWARD}


def test_a_new_subject_of_the_core_must_be_placed_deliberately(imports: grimp.ImportGraph) -> None:
    assert broken_contracts(imports, new_module="fairlead.core.newthing") == {SIDE_BY_SIDE}


@pytest.mark.parametrize("package", ["server", "frontend", "history"])
def test_the_public_client_may_not_import_the_server(imports: grimp.ImportGraph, package: str) -> None:
    assert broken_contracts(imports, importer="fairlead.client", imported=f"fairlead.{package}") == {DOWNWARD}


@pytest.mark.parametrize(
    ("importer", "imported"),
    [("fairness", "versions"), ("scaling", "balancing"), ("partitions", "scaling")],
)
def test_the_subjects_of_the_core_may_not_import_each_other(
    imports: grimp.ImportGraph, importer: str, imported: str
) -> None:
    broken = broken_contracts(imports, importer=f"fairlead.core.{importer}", imported=f"fairlead.core.{imported}")
    assert broken == {SIDE_BY_SIDE}


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("state.run", "events.transaction"),
        ("events.apply", "commands.completion"),
        ("commands.start_timer", "shard.queue"),
        ("shard.shard", "ndc.apply"),
        ("ndc.apply", "entities.entity"),
        ("nexus.dispatch", "worker_deployments.handlers"),
        ("entities.entity", "handlers.start"),
        ("handlers.start", "task_executors.close"),
        ("task_executors.close", "service"),
    ],
)
def test_each_layer_of_history_may_import_only_those_below_it(
    imports: grimp.ImportGraph, importer: str, imported: str
) -> None:
    broken = broken_contracts(imports, importer=f"fairlead.history.{importer}", imported=f"fairlead.history.{imported}")
    assert broken == {WITHIN_HISTORY}


def test_a_new_module_of_history_must_be_placed_deliberately(imports: grimp.ImportGraph) -> None:
    assert broken_contracts(imports, new_module="fairlead.history.newthing") == {WITHIN_HISTORY}


@pytest.mark.parametrize("imported", ["shard.stream_rows", "ndc.restore", "handlers.shard", "service"])
def test_replication_may_import_only_the_client_and_messages_of_history(
    imports: grimp.ImportGraph, imported: str
) -> None:
    importer = "fairlead.replication.applier"
    assert broken_contracts(imports, importer=importer, imported=f"fairlead.history.{imported}") == {HISTORY_CLIENT}


@pytest.mark.parametrize(
    "importer",
    ["history.ndc.apply", "history", "matching.engine", "replication.applier", "storage.history", "api.ids"],
)
@pytest.mark.parametrize("imported", ["fairlead.rpc", "fairlead.rpc.status", "grpc"])
def test_services_know_no_grpc_codes(imports: grimp.ImportGraph, importer: str, imported: str) -> None:
    """FL-79."""
    broken = {CODES_AT_THE_EDGE, ONE_TRANSPORT} if imported == "grpc" else {CODES_AT_THE_EDGE}
    assert broken_contracts(imports, importer=f"fairlead.{importer}", imported=imported) == broken


@pytest.mark.parametrize(
    "imported",
    ["service", "shard.shard", "handlers.start", "ndc.apply", "commands.completion", "task_executors.close",
     "worker_deployments.handlers", "nexus.handlers", "entities.schedules.handlers", "state.run", "events.apply"],
)  # fmt: skip
def test_the_frontend_knows_history_by_its_client_and_messages(imports: grimp.ImportGraph, imported: str) -> None:
    importer = "fairlead.frontend.handlers.workflows"
    broken = broken_contracts(imports, importer=importer, imported=f"fairlead.history.{imported}")
    assert broken == {FRONTEND_OF_HISTORY}


ROOMS = runpy.run_path(str(PROJECT / "scripts" / "lint-rooms"))
LINES_MAX, METHODS_MAX, REASON = 400, 25, "Many methods, because"


def test_no_module_is_longer_than_400_lines_and_no_class_has_more_than_25_methods_without_a_reason() -> None:
    found: list[str] = []
    for path in sorted((PROJECT / "src").rglob("*.py")):
        name, text = str(path.relative_to(PROJECT)), path.read_text()
        found += [*ROOMS["too_long"](name, text), *ROOMS["too_many_methods"](name, text)]
    assert found == []


def test_a_long_module_and_a_large_class_are_found() -> None:
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(METHODS_MAX + 1))
    (long,) = ROOMS["too_long"]("a.py", "\n" * (LINES_MAX + 1))
    assert long.startswith("a.py has 401 lines")
    assert list(ROOMS["too_long"]("a.py", "\n" * LINES_MAX)) == []
    (large,) = ROOMS["too_many_methods"]("a.py", f"class A:\n{methods}")
    assert large.startswith("a.py: A has 26 methods")
    assert list(ROOMS["too_many_methods"]("a.py", f'class A:\n    """A. {REASON} so."""\n{methods}')) == []


@pytest.mark.parametrize("name", [FRONTEND_OF_HISTORY, HISTORY_CLIENT])
def test_the_contracts_of_historys_callers_name_all_of_its_insides(imports: grimp.ImportGraph, name: str) -> None:
    contracts = read_configuration(str(PROJECT / "pyproject.toml"))["contracts_options"]
    (options,) = (each for each in contracts if each["name"].startswith(name))
    insides = imports.find_children("fairlead.history") - {"fairlead.history.client", "fairlead.history.messages"}
    assert set(options["forbidden_modules"]) == insides


OURS = re.compile(r"^\s*from (fairlead[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
# Type variables of calls between hosts, which are no classes.
TYPE_VARIABLES = frozenset({("fairlead.rpc.hosts.caller", "Request"), ("fairlead.rpc.hosts.caller", "Response")})


def met_twice(name: str, text: str, repeated: Collection[str]) -> Iterator[str]:
    """The names among `repeated` that one file imports from two modules, or both imports and defines."""
    homes: dict[str, set[str]] = {}
    for module, several, single in OURS.findall(text):
        for imported in re.findall(r"(\w+)(?: as \w+)?", several or single):
            if (module, imported) not in TYPE_VARIABLES:
                homes.setdefault(imported, set()).add(module)
    for defined in CLASS.findall(text):
        homes.setdefault(defined, set()).add("this file")
    for found in sorted(homes.keys() & set(repeated)):
        if len(homes[found]) > 1:
            yield f"{name}: {found} of {' and '.join(sorted(homes[found]))}"


def test_two_classes_of_one_name_never_meet_in_a_file() -> None:
    texts = {
        path: path.read_text()
        for folder in ("src", "tests", "benchmarks", "examples")
        for path in sorted((PROJECT / folder).rglob("*.py"))
    }
    defined = [name for path, text in texts.items() if "src" in path.parts for name in set(CLASS.findall(text))]
    repeated = {name for name, count in Counter(defined).items() if count > 1 and not name.startswith("_")}
    found: list[str] = []
    for path, text in texts.items():
        found += met_twice(str(path.relative_to(PROJECT)), text, repeated)
    assert found == []


def test_two_classes_of_one_name_are_found() -> None:
    first, second = "from fairlead.a import Run\n", "from fairlead.b import (\n    Other,\n    Run as Another,\n)\n"
    assert list(met_twice("a.py", first + second, ["Run"])) == ["a.py: Run of fairlead.a and fairlead.b"]
    assert list(met_twice("a.py", f"{first}class Run: ...\n", ["Run"])) == ["a.py: Run of fairlead.a and this file"]
    assert list(met_twice("a.py", first, ["Run"])) == []
    assert list(met_twice("a.py", first + second, [])) == []
