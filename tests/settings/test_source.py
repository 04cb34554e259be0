"""The settings in force, and what happens to them when the file changes."""

import os
import timeit
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.balancing import Strategy
from fairlead.core.partitions import TaskType
from fairlead.settings import (
    DynamicSettings,
    InvalidSettings,
    InvalidValue,
    Outcome,
    Plain,
    Scope,
    Setting,
    matching,
    parse_overrides,
)
from fairlead.settings import source as source_module

HERE = Scope("orders", "checkout", TaskType.ACTIVITY)
READ = matching.NUM_READ_PARTITIONS


def with_read(value: object, more: str = "") -> str:
    return f"{READ.key}: [{{value: {value}}}{more}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(with_read(4))
    return path


def test_without_a_file_the_defaults_are_in_force() -> None:
    settings = DynamicSettings()
    assert settings.get(READ, HERE) == 1
    assert settings.rule(READ, HERE) is None
    assert settings.reload().outcome is Outcome.UNCHANGED


def test_the_file_comes_before_the_default_and_the_command_line_before_the_file(file: Path) -> None:
    file.write_text(with_read(4, ", {value: 8, constraints: {namespace: orders}}"))
    settings = DynamicSettings(file=file)
    assert (settings.get(READ), settings.get(READ, HERE)) == (4, 8)
    settings = DynamicSettings(file=file, overrides={"matching.NUMTASKQUEUEREADPARTITIONS": 2})
    assert (settings.get(READ), settings.get(READ, HERE)) == (2, 2)


def test_a_rule_says_where_a_value_comes_from(file: Path) -> None:
    rule = DynamicSettings(file=file).rule(READ, HERE)
    assert rule is not None
    assert rule.line == 1
    rule = DynamicSettings(overrides={READ.key: 3}).rule(READ, HERE)
    assert rule is not None
    assert rule.line is None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("a: [", "the file is not YAML"), ("a: 1", "'a' is no setting"), (None, "No such file")],
)
def test_a_server_does_not_start_with_a_bad_file(file: Path, content: str | None, complaint: str) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(InvalidSettings, match=complaint) as refused:
        DynamicSettings(file=file)
    assert str(file) in str(refused.value)


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(InvalidSettings, match="is no regular file"):
            DynamicSettings(file=path)


def test_a_changed_file_is_put_into_force_once(file: Path) -> None:
    settings = DynamicSettings(file=file)
    assert settings.reload().outcome is Outcome.UNCHANGED
    file.write_text(with_read(5))
    reload = settings.reload()
    assert reload.outcome is Outcome.LOADED
    assert reload.changed == (READ,)
    assert settings.get(READ, HERE) == 5
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.UNCHANGED] * 3


def test_a_file_that_was_written_anew_with_the_same_content_changes_nothing(file: Path) -> None:
    settings = DynamicSettings(file=file)
    file.write_text(with_read(4))
    os.utime(file, ns=(1, 1))
    assert settings.reload().outcome is Outcome.UNCHANGED


def test_a_comment_is_loaded_but_changes_no_setting(file: Path) -> None:
    settings = DynamicSettings(file=file)
    file.write_text("# why\n" + with_read(4))
    reload = settings.reload()
    assert (reload.outcome, reload.changed) == (Outcome.LOADED, ())
    rule = settings.rule(READ)
    assert rule is not None
    assert rule.line == 2


def test_a_file_that_another_was_renamed_over_is_put_into_force(file: Path) -> None:
    settings = DynamicSettings(file=file)
    for value in (5, 6):
        new = file.with_suffix(".new")
        new.write_text(with_read(value))
        new.replace(file)
        assert settings.reload().outcome is Outcome.LOADED
        assert settings.get(READ) == value


def test_a_link_that_points_elsewhere_is_put_into_force(file: Path, tmp_path: Path) -> None:
    """As Kubernetes replaces what it mounts."""
    link, other = tmp_path / "link", tmp_path / "other"
    other.write_text(with_read(7))
    link.symlink_to(file)
    settings = DynamicSettings(file=link)
    link.unlink()
    link.symlink_to(other)
    assert settings.reload().outcome is Outcome.LOADED
    assert settings.get(READ) == 7


def test_two_writes_within_one_tick_of_the_file_systems_clock_are_both_seen(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = source_module._version_of(file)
    monkeypatch.setattr(source_module, "_version_of", lambda _: version)
    settings = DynamicSettings(file=file)
    file.write_text(with_read(5))
    assert settings.reload().outcome is Outcome.LOADED
    assert settings.get(READ) == 5
    assert version is not None
    version = version._replace(modified_ns=version.modified_ns + 1)
    for value in (6, 7):
        file.write_text(with_read(value))
        assert settings.reload().outcome is Outcome.LOADED
        assert settings.get(READ) == value


def test_an_unchanged_file_is_not_read_again_once_it_is_settled(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = DynamicSettings(file=file)
    settings.reload()

    def refuse(_: Path) -> None:
        raise AssertionError

    monkeypatch.setattr(source_module, "read_file", refuse)
    assert settings.reload().outcome is Outcome.UNCHANGED


@pytest.mark.parametrize("bad", [with_read(0), "a: [", with_read(9) + "unknown: []", "x" * 2_000_000])
def test_a_bad_file_is_told_once_and_the_last_good_one_stays(file: Path, bad: str) -> None:
    """Issue, 'settings': 'last good kept when the new one is bad'."""
    settings = DynamicSettings(file=file)
    file.write_text(bad)
    reload = settings.reload()
    assert reload.outcome is Outcome.REFUSED
    assert reload.problems
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.UNCHANGED] * 3
    assert settings.get(READ) == 4


def test_each_bad_version_is_told_and_a_good_one_ends_it(file: Path) -> None:
    settings = DynamicSettings(file=file)
    outcomes = []
    for text in ("a: [", "b: [", with_read(4), with_read(6)):
        file.write_text(text)
        outcomes += [settings.reload().outcome, settings.reload().outcome]
    told = [Outcome.REFUSED, Outcome.UNCHANGED] * 2 + [Outcome.LOADED, Outcome.UNCHANGED] * 2
    assert outcomes == told
    assert settings.get(READ) == 6


def test_a_deleted_file_is_told_once_and_the_last_good_one_stays(file: Path) -> None:
    settings = DynamicSettings(file=file)
    file.unlink()
    assert settings.reload().outcome is Outcome.MISSING
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.UNCHANGED] * 3
    assert settings.get(READ) == 4
    file.write_text(with_read(4))
    assert settings.reload().outcome is Outcome.LOADED


def test_a_file_that_became_a_folder_is_told_once(file: Path) -> None:
    settings = DynamicSettings(file=file)
    file.unlink()
    file.mkdir()
    reload = settings.reload()
    assert reload.outcome is Outcome.REFUSED
    assert "is no regular file" in str(reload.problems[0])
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.UNCHANGED] * 3
    file.rmdir()
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.MISSING, Outcome.UNCHANGED, Outcome.UNCHANGED]
    assert settings.get(READ) == 4


def test_a_listener_is_told_each_new_value_of_its_scope_and_no_other(file: Path) -> None:
    settings = DynamicSettings(file=file)
    told: list[tuple[str, Any]] = []

    def subscribe(name: str, setting: Setting[Any], scope: Scope) -> Any:
        return settings.subscribe(setting, lambda value: told.append((name, value)), scope)

    end = subscribe("here", READ, HERE)
    subscribe("elsewhere", READ, Scope("payments"))
    subscribe("other", matching.NUM_WRITE_PARTITIONS, HERE)
    file.write_text(with_read(4, ", {value: 8, constraints: {namespace: orders}}"))
    settings.reload()
    assert told == [("here", 8)]
    file.write_text("a: [")
    settings.reload()
    assert told == [("here", 8)]
    end()
    end()
    file.write_text(with_read(5))
    settings.reload()
    assert told == [("here", 8), ("elsewhere", 5)]


def test_a_value_that_was_asked_for_before_is_not_remembered_after_a_change(file: Path) -> None:
    settings = DynamicSettings(file=file)
    for value in (8, 9):
        file.write_text(with_read(4, f", {{value: {value}, constraints: {{namespace: orders}}}}"))
        settings.reload()
        assert [settings.get(READ, HERE) for _ in range(2)] == [value, value]


def test_a_listener_sees_the_new_values_of_all_settings(file: Path) -> None:
    settings = DynamicSettings(file=file)
    seen: list[int] = []
    settings.subscribe(READ, lambda _: seen.append(settings.get(matching.NUM_WRITE_PARTITIONS)))
    file.write_text(with_read(5) + "matching.numTasklistWritePartitions: [{value: 3}]\n")
    settings.reload()
    assert seen == [3]


def test_one_listener_that_fails_does_not_keep_the_others_from_being_told(file: Path) -> None:
    settings = DynamicSettings(file=file)
    told: list[int] = []

    def fail(_: int) -> None:
        raise ZeroDivisionError

    settings.subscribe(READ, fail)
    settings.subscribe(READ, told.append)
    file.write_text(with_read(5))
    with pytest.raises(ExceptionGroup, match="listeners failed; the new settings are in force"):
        settings.reload()
    assert told == [5]
    assert settings.get(READ) == 5
    assert settings.reload().outcome is Outcome.UNCHANGED


def test_the_memory_of_values_is_bounded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "CACHED_VALUES_MAX", 10)
    file.write_text(with_read(4, ", {value: 8, constraints: {namespace: orders}}"))
    settings = DynamicSettings(file=file)
    for number in range(100):
        assert settings.get(READ, Scope(f"namespace {number}")) == 4
        assert settings.get(READ, HERE) == 8
        assert len(settings._cache) <= 10


def test_values_of_the_command_line_are_json() -> None:
    overrides = parse_overrides(
        ["matching.numTasklistReadPartitions=3", 'system.tasklistLoadBalancerStrategy="random"']
    )
    settings = DynamicSettings(overrides=overrides)
    assert settings.get(READ) == 3
    assert settings.get(matching.TASKLIST_LOAD_BALANCER_STRATEGY) is Strategy.RANDOM


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["matching.numTasklistReadPartitions"], "is not of the form KEY=JSON"),
        (["=3"], "is not of the form KEY=JSON"),
        (["system.tasklistLoadBalancerStrategy=random"], "is not JSON: put a text in double quotes"),
        (["a=" + "[" * 100_000], "is not JSON"),
        (["a=" + "9" * 10_000], "is not JSON"),
        (["a=1", "A=1"], "is given twice"),
    ],
)
def test_a_value_of_the_command_line_that_is_no_json_is_refused(texts: list[str], complaint: str) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        parse_overrides(texts)


def test_all_problems_of_the_command_line_are_told_at_once() -> None:
    overrides: dict[str, Plain] = {
        "matching.numTasklistReadPartition": 3,
        "matching.numTasklistWritePartitions": 0,
        "matching.numTasklistReadPartitions": 3,
        "matching.numTaskqueueReadPartitions": 4,
        "matching.partitionUpscaleRPS": float("nan"),
    }
    with pytest.raises(InvalidSettings, match="the command line has 4 problems") as refused:
        DynamicSettings(overrides=overrides)
    assert [str(problem) for problem in refused.value.problems] == [
        "'matching.numTasklistReadPartition' is no setting: did you mean matching.numTasklistReadPartitions?",
        "matching.numTasklistWritePartitions: '0' is out of bounds: choose 1 to 10000",
        f"matching.numTaskqueueReadPartitions is another spelling of {READ.key}, which is given: keep one",
        "matching.partitionUpscaleRPS: 'NaN' is out of bounds: choose 0.001 to 1e+09",
    ]


def test_file_and_command_line_are_judged_together(file: Path) -> None:
    minimum, maximum = matching.MINIMUM_WRITE_PARTITIONS.key, matching.MAXIMUM_WRITE_PARTITIONS.key
    file.write_text(f"{minimum}: [{{value: 150}}]")
    assert DynamicSettings(file=file, overrides={maximum: 200}).get(matching.MINIMUM_WRITE_PARTITIONS) == 150
    with pytest.raises(InvalidSettings, match=r"is 150 \(everywhere\), above matching.taskListMaximumWritePartitions"):
        DynamicSettings(file=file)
    with pytest.raises(InvalidSettings, match="the command line has 1 problem: "):
        DynamicSettings(overrides={minimum: 150})


def test_a_get_costs_about_a_dictionary_lookup(file: Path) -> None:
    """A ratio of two loops in the same run: about 1.5 and 4; the bounds leave room for a noisy machine."""
    file.write_text(with_read(4, ", {value: 8, constraints: {namespace: orders}}"))
    settings = DynamicSettings(file=file)
    dictionary = {HERE: 8}
    child = matching.FORWARDER_MAX_CHILDREN_PER_NODE
    best = [
        min(timeit.repeat(statement, number=20_000, repeat=7))
        for statement in (
            lambda: dictionary.get(HERE),
            lambda: settings.get(child, HERE),
            lambda: settings.get(READ, HERE),
        )
    ]
    assert best[1] < best[0] * 4
    assert best[2] < best[0] * 10
