"""The files beside the code agree with each other: version, lock, continuous integration, hooks, templates."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import fairlead

PROJECT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
MAKEFILE = (PROJECT / "Makefile").read_text()
LOCK = (PROJECT / "requirements-dev.lock").read_text()


def document(path: str) -> Any:
    return yaml.safe_load((PROJECT / path).read_text())


def locked() -> list[Requirement]:
    return [Requirement(line) for line in LOCK.splitlines() if not line.startswith("#")]


def required() -> list[Requirement]:
    """Direct dependencies and those of all extras, without the project itself."""
    lines = [
        *PYPROJECT["dependencies"],
        *(line for extra in PYPROJECT["optional-dependencies"].values() for line in extra),
    ]
    found = [Requirement(line) for line in lines]
    return [requirement for requirement in found if requirement.name != "fairlead"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_version_has_one_place() -> None:
    assert "version" in PYPROJECT["dynamic"]
    assert "version" not in PYPROJECT
    assert importlib.metadata.version("fairlead") == fairlead.__version__


def test_the_newest_release_in_the_changelog_is_the_version() -> None:
    releases = re.findall(r"^## (.+?)(?: - \d{4}-\d{2}-\d{2})?$", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == "Unreleased"
    assert releases[1] == fairlead.__version__
    assert len(releases) == len(set(releases))


@pytest.mark.parametrize("requirement", required(), ids=lambda requirement: requirement.name)
def test_every_dependency_is_locked_at_a_version_that_it_allows(requirement: Requirement) -> None:
    pins = [pin for pin in locked() if plain(pin.name) == plain(requirement.name)]
    assert pins
    for pin in pins:
        (version,) = pin.specifier
        assert version.operator == "=="
        assert requirement.specifier.contains(version.version)


def test_the_lock_names_no_host_and_is_used_by_make() -> None:
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "--constraint requirements-dev.lock" in MAKEFILE


def test_continuous_integration_runs_every_python_that_the_package_promises() -> None:
    promised = [name.rpartition(" ")[2] for name in PYPROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
    jobs = document(".github/workflows/ci.yml")["jobs"]
    assert {name: job["strategy"]["matrix"]["python"] for name, job in jobs.items()} == dict.fromkeys(
        ["test", "wheel"], promised
    )
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in promised
    verbs = {
        step["run"].split()[1]
        for job in jobs.values()
        for step in job["steps"]
        if "run" in step and "make" in step["run"]
    }
    assert verbs == {"check", "test", "wheel"}


def test_the_hooks_run_the_tools_of_make_check() -> None:
    (repository,) = document(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    hooks = {" ".join(hook["entry"].split()[:2]).removesuffix(" --force-exclude") for hook in repository["hooks"]}
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    tools = {
        line.strip().replace("$(BIN)", ".venv/bin").replace(" --check", "").removesuffix(" .")
        for line in recipe[1].splitlines()
    }
    assert hooks == tools


@pytest.mark.parametrize("template", ["bug_report", "feature_request"])
def test_an_issue_template_has_a_name_and_asks_something(template: str) -> None:
    form = document(f".github/ISSUE_TEMPLATE/{template}.yml")
    assert form["name"]
    assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_the_places_of_code_written_by_hand_exist() -> None:
    contributing = (PROJECT / "CONTRIBUTING.md").read_text()
    section = contributing.partition("## Written by hand, and why")[2].partition("\n## ")[0]
    places = re.findall(r"`(src/[^`]+)`", section)
    assert len(places) >= 12
    assert [place for place in places if not (PROJECT / place).exists()] == []
