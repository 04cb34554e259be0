"""The import contracts hold, and each of them can fail: on a copy of the project, with one line planted in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"

PURE = "The core is pure"
DOWNWARD = "Data flows down"
SIDE_BY_SIDE = "Within the core"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(PROJECT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    return tmp_path


def broken_contracts(project: Path) -> set[str]:
    """The names of the contracts that the copy breaks, each up to its colon."""
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "NO_COLOR": "1", "COLUMNS": "200"}
    result = subprocess.run(  # noqa: S603 - our own tool on our own copy
        [LINT_IMPORTS, "--no-cache", "--no-logo"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = [line for line in result.stdout.splitlines() if line.endswith((" KEPT", " BROKEN"))]
    assert len(verdicts) >= 3, result.stdout + result.stderr
    broken = {line.removesuffix(" BROKEN").split(":")[0] for line in verdicts if line.endswith(" BROKEN")}
    assert result.returncode == (1 if broken else 0), result.stdout + result.stderr
    return {contract.split(",")[0] for contract in broken}


def plant(file: Path, line: str) -> None:
    file.write_text(f"{file.read_text()}\n{line}\n")


def test_the_project_keeps_every_contract(project: Path) -> None:
    assert broken_contracts(project) == set()


@pytest.mark.parametrize("module", ["asyncio", "time", "random", "os", "threading", "sqlite3", "grpc"])
def test_the_core_may_not_import(project: Path, module: str) -> None:
    """Style, point 1: `core` imports no asyncio, time, random, os, sqlite3, grpc. That one need not be installed."""
    plant(project / "src/fairlead/core/scaling/scaler.py", f"import {module}")
    assert broken_contracts(project) == {PURE}


def test_the_core_may_not_import_a_part_of_what_it_may_not_import(project: Path) -> None:
    plant(project / "src/fairlead/core/hashing.py", "from os import path")
    assert broken_contracts(project) == {PURE}


def test_the_core_knows_nobody(project: Path) -> None:
    plant(project / "src/fairlead/core/partitions/tree.py", "from fairlead import cli")
    assert DOWNWARD in broken_contracts(project)


def test_a_new_package_must_be_placed_deliberately(project: Path) -> None:
    package = project / "src/fairlead/newthing"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert broken_contracts(project) == {DOWNWARD}


def test_a_new_subject_of_the_core_must_be_placed_deliberately(project: Path) -> None:
    package = project / "src/fairlead/core/newthing"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert broken_contracts(project) == {SIDE_BY_SIDE}


@pytest.mark.parametrize(
    ("importer", "imported"),
    [("fairness", "versions"), ("scaling", "balancing"), ("partitions", "scaling")],
)
def test_the_subjects_of_the_core_stand_side_by_side(project: Path, importer: str, imported: str) -> None:
    plant(project / f"src/fairlead/core/{importer}/__init__.py", f"from fairlead.core import {imported}")
    assert broken_contracts(project) == {SIDE_BY_SIDE}
