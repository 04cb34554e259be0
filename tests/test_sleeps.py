"""A test that sleeps in real time says why: it should wait for a condition, or run on virtual time."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SLEEPS = ("asyncio.sleep", "time.sleep")
VIRTUAL = "on_virtual_time"


def unexplained(source: str) -> Iterator[int]:
    """Lines of real sleeps in tests without a comment on the line before. Sleeps in loops poll for a condition."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        if any(VIRTUAL in ast.unparse(one) for one in node.decorator_list):
            continue
        yield from (line for line in _sleeps_in(node) if not lines[line - 2].lstrip().startswith("#"))


def _sleeps_in(node: ast.AST) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        # Functions inside of a test are its workflows, activities, fakes, or scenarios for a virtual loop.
        if isinstance(
            child, ast.While | ast.For | ast.AsyncFor | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func) in SLEEPS and ast.unparse(child.args[0]) != "0":
            yield child.lineno
        yield from _sleeps_in(child)


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
    ],
)
def test_a_real_sleep_without_a_reason_is_found(body: str, is_found: bool) -> None:
    source = f"async def test_something():\n    {body}\n"
    assert bool(list(unexplained(source))) is is_found
    assert not list(unexplained(f"@on_virtual_time\n{source}"))
