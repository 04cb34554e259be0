"""The rules in docs/design agree with their citations; each check can fail, as a small project with one fault shows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGES = {
    "TQ": "task-queues.md",
    "SC": "adaptive-scaler.md",
    "MC": "matching-client.md",
    "FB": "fair-backlog.md",
    "NDC": "replication.md",
    "FL": "decisions.md",
}
RULE_ID = re.compile(rf"\b(?:{'|'.join(PAGES)})-\d+\b")
DEFINITION = re.compile(r"^- \*\*([A-Z]+-\d+)\*\* ", re.MULTILINE)
NOT_SHOWN = "\n## Not shown yet\n"
# Citations of texts outside the repository: numbered documents, notes on other systems, issues.
ABSENT = re.compile(
    r'\bseed 00\d\b|\bfact sheet\b|\bfacts/|(?<=""")(?:facts|issue|design|style)(?:[,:]| \d)', re.IGNORECASE
)
# This file quotes the patterns that it searches for.
UNCHECKED = {Path("tests/docs/test_design_rules.py")}


def problems(project: Path) -> list[str]:
    """All faults in a project's rules and their citations, one line each."""
    texts = dict(_texts(project))
    found = []
    rules: set[str] = set()
    not_shown: set[str] = set()
    for prefix, name in PAGES.items():
        rules_part, _, not_shown_part = texts[Path("docs/design") / name].partition(NOT_SHOWN)
        ids = DEFINITION.findall(rules_part)
        expected = [f"{prefix}-{number}" for number in range(1, len(ids) + 1)]
        if sorted(ids, key=_number) != expected:
            found.append(f"{name} defines {', '.join(ids)}: expected each of {prefix}-1 to {prefix}-{len(ids)} once")
        rules.update(ids)
        not_shown.update(RULE_ID.findall(not_shown_part))
    shown: set[str] = set()
    for path, text in texts.items():
        cited = set(RULE_ID.findall(text))
        found += [f"{path} cites {rule}, which no page in docs/design defines" for rule in sorted(cited - rules)]
        found += [f"{path} cites {absent!r}, which is not in the repository" for absent in ABSENT.findall(text)]
        if path.parts[0] == "tests":
            shown |= cited
    found += [f"no test cites {rule}: cite it or list it as not shown" for rule in sorted(rules - shown - not_shown)]
    found += [f"{rule} is listed as not shown, but a test cites it" for rule in sorted(not_shown & shown)]
    return found


def _number(rule: str) -> int:
    return int(rule.rpartition("-")[2])


def _texts(project: Path) -> Iterator[tuple[Path, str]]:
    for folder, pattern in (("src", "*.py"), ("tests", "*.py"), ("benchmarks", "*.py"), ("docs", "*.md")):
        for file in (project / folder).rglob(pattern):
            if (path := file.relative_to(project)) not in UNCHECKED:
                yield path, file.read_text()
    for file in project.glob("*.md"):
        yield file.relative_to(project), file.read_text()


def test_the_rules_and_their_citations_agree() -> None:
    assert problems(PROJECT) == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project with one rule on each page; a test cites all of them."""
    (tmp_path / "docs/design").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    for prefix, name in PAGES.items():
        (tmp_path / "docs/design" / name).write_text(f"- **{prefix}-1** A rule.\n")
    cited = ", ".join(f"{prefix}-1" for prefix in PAGES)
    (tmp_path / "tests/test_rules.py").write_text(f'"""{cited}."""\n')
    assert problems(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("file", "line", "problem"),
    [
        ("tests/test_more.py", "# NDC-2", "tests/test_more.py cites NDC-2, which no page in docs/design defines"),
        ("README.md", "see FB-99", "README.md cites FB-99, which no page in docs/design defines"),
        ("src/a.py", "# Seed 009", "src/a.py cites 'Seed 009', which is not in the repository"),
        ("tests/a.py", '"""Facts, 2."""', "tests/a.py cites 'Facts,', which is not in the repository"),
        ("tests/a.py", '"""Issue 4: fast."""', "tests/a.py cites 'Issue 4', which is not in the repository"),
        ("docs/design/decisions.md", "- **FL-2** New.", "no test cites FL-2: cite it or list it as not shown"),
    ],
)
def test_a_planted_fault_is_found(small: Path, file: str, line: str, problem: str) -> None:
    path = small / file
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + line + "\n")
    assert problems(small) == [problem]


@pytest.mark.parametrize("added", ["SC-1", "SC-3", "TQ-2"])
def test_the_ids_of_a_page_have_its_prefix_and_no_gap(small: Path, added: str) -> None:
    page = small / "docs/design/adaptive-scaler.md"
    page.write_text(page.read_text() + f"- **{added}** One more.\n")
    (small / "tests/test_more.py").write_text(f"# {added}\n")
    assert problems(small) == [f"adaptive-scaler.md defines SC-1, {added}: expected each of SC-1 to SC-2 once"]


def test_a_rule_listed_as_not_shown_must_not_be_cited_by_a_test(small: Path) -> None:
    page = small / "docs/design/decisions.md"
    page.write_text(page.read_text() + f"- **FL-2** New.\n{NOT_SHOWN}\n- FL-2: hard to show.\n")
    assert problems(small) == []
    (small / "tests/test_more.py").write_text("# FL-2\n")
    assert problems(small) == ["FL-2 is listed as not shown, but a test cites it"]
