"""The walks in ARCHITECTURE.md name functions that exist, and a start takes at most 30 hops."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOPS_MAX = 30
# Words in backticks that are no function: values, modules and fields of the text around the walks.
NOT_FUNCTIONS = frozenset({"fairlead.client", "gateway/service", "storage/watched", "rpc/hosts"})
DEFINED = re.compile(r"^\s*(?:async )?def (\w+)|^class (\w+)", re.MULTILINE)


def _section() -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return text.split("## The way of a call\n")[1].split("\n## ")[0]


def _names(text: str) -> list[str]:
    return [name for name in re.findall(r"`([^`]+)`", text) if name not in NOT_FUNCTIONS]


def _defined() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "src").rglob("*.py"):
        for function, kind in DEFINED.findall(file.read_text()):
            found.add(function or kind)
    return found


def test_every_hop_is_a_function_of_the_code() -> None:
    defined = _defined()
    parts = {part for name in _names(_section()) for part in name.split(".")}
    modules = {file.stem for file in (ROOT / "src").rglob("*.py")} | {
        folder.name for folder in (ROOT / "src").rglob("*") if folder.is_dir()
    }
    assert sorted(parts - defined - modules) == []


def _walks() -> dict[int, list[str]]:
    """The hops of each walk that is a table, by the number that the text says."""
    found = {}
    for walk in re.split(r"\n\*\*", _section())[1:]:
        said = re.search(r"\*\*: (\d+) hops", walk)
        if said is not None and "| part | hops |" in walk:
            table = walk.split("| part | hops |")[1].split("\n\n")[0]
            found[int(said[1])] = [name for row in table.splitlines() for name in _names(row.split("; then")[0])]
    return found


def test_each_walk_has_as_many_hops_as_it_says_and_a_start_at_most_30() -> None:
    walks = _walks()
    assert {said: len(hops) for said, hops in walks.items()} == {said: said for said in walks}
    assert len(walks) == 3
    assert next(iter(walks)) <= HOPS_MAX
