"""A test that sleeps in real time says why: it should wait for a condition, or run on virtual time."""

import ast
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SLEEPS = ("asyncio.sleep", "time.sleep")
VIRTUAL = "on_virtual_time"
VIRTUAL_LOOP = "fairlead.simulations.virtual_loop"
RANDOM = ("chance.", "random")


def unexplained(source: str) -> Iterator[int]:
    """Lines of real sleeps in tests and the helpers beside them, without a comment on the line before."""
    if ".sleep(" not in source:
        return
    lines = source.splitlines()
    module = ast.parse(source)
    imports = [node for node in module.body if isinstance(node, ast.ImportFrom)]
    virtual = {
        name.asname or name.name
        for node in imports
        if node.module == VIRTUAL_LOOP or VIRTUAL in {name.name for name in node.names}
        for name in node.names
        if name.name == "run"
    }
    # Helpers that run a virtual loop.
    virtual |= {node.name for node in module.body if isinstance(node, ast.FunctionDef) and _calls(node, virtual)}
    yield from (line for line in _sleeps_in(module, virtual) if not lines[line - 2].lstrip().startswith("#"))


def _sleeps_in(node: ast.AST, virtual: Container[str]) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if _is_exempt(child, virtual):
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func) in SLEEPS:
            length = ast.unparse(child.args[0])
            # A pause of random length searches interleavings.
            if length != "0" and not any(word in length for word in RANDOM):
                yield child.lineno
        yield from _sleeps_in(child, virtual)


def _calls(node: ast.AST, names: Container[str]) -> bool:
    return any(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id in names for one in ast.walk(node)
    )


def _is_exempt(node: ast.AST, virtual: Container[str]) -> bool:
    """Whether sleeps in this part of the source are not real, or need no reason."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        decorators = [ast.unparse(one) for one in node.decorator_list]
        # Workflows and activities of the SDK are decorated with `defn`.
        return _calls(node, virtual) or any(
            VIRTUAL in one or one.partition("(")[0].endswith(".defn") for one in decorators
        )
    # A `for` loop that can end early polls for a condition, too.
    is_poll = isinstance(node, ast.For | ast.AsyncFor) and any(
        isinstance(one, ast.Break | ast.Return) for one in ast.walk(node)
    )
    # Sleeps in classes are exempt: these are workflows, fakes and users' programs.
    return is_poll or isinstance(node, ast.While | ast.ClassDef)


def test_every_real_sleep_in_a_test_has_a_reason() -> None:
    found = [f"{file}:{line}" for file in sorted(TESTS.rglob("test_*.py")) for line in unexplained(file.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("await asyncio.sleep(1)", True),
        ("time.sleep(0.1)", True),
        ("async with here():\n        await asyncio.sleep(1)", True),
        ("# Only time can show it.\n    await asyncio.sleep(1)", False),
        ("await asyncio.sleep(0)", False),
        ("while not done():\n        await asyncio.sleep(0.01)", False),
        ("for _ in range(3):\n        await asyncio.sleep(1)", True),
        ("for _ in range(3):\n        if done():\n            break\n        await asyncio.sleep(1)", False),
        ("await asyncio.sleep(chance.uniform(0, 1))", False),
        ("async def nested():\n        await asyncio.sleep(1)", True),
        ("@activity.defn\n    async def work():\n        await asyncio.sleep(1)", False),
    ],
)
@pytest.mark.parametrize("name", ["test_something", "helper"])
def test_a_real_sleep_without_a_reason_is_found(name: str, body: str, is_found: bool) -> None:
    source = f"async def {name}():\n    {body}\n"
    assert bool(list(unexplained(source))) is is_found
    assert not list(unexplained(f"@on_virtual_time\n{source}"))


def test_sleeps_of_a_function_that_runs_a_virtual_loop_are_not_real() -> None:
    body = "def test_something():\n    async def main():\n        await asyncio.sleep(1)\n    run(main())\n"
    assert list(unexplained(f"from {VIRTUAL_LOOP} import run\n{body}")) == []
    assert list(unexplained(f"from asyncio import run\n{body}")) != []
