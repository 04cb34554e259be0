"""The settings in force, and their reload when the file changes."""

import os
import time
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.balancing import Strategy
from fairlead.core.namespaces import NamespaceNames
from fairlead.core.partitions import TaskType
from fairlead.settings import (
    DynamicSettings,
    InvalidSettings,
    InvalidValue,
    Outcome,
    Plain,
    Scope,
    Setting,
    parse_overrides,
)
from fairlead.settings.dynamic import matching
from fairlead.settings.dynamic import source as source_module

HERE = Scope("orders", "checkout", TaskType.ACTIVITY)
READ = matching.NUM_READ_PARTITIONS


def with_read(value: object, more: str = "") -> str:
    return f"{READ.key}: [{{value: {value}}}{more}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(with_read(4))
    return path


def test_the_defaults_apply_without_a_file() -> None:
    settings = DynamicSettings()
    assert settings.get(READ, HERE) == 1
    assert settings.rule(READ, HERE) is None
    assert settings.reload().outcome is Outcome.UNCHANGED


def test_the_command_line_overrides_the_file_and_the_file_overrides_the_default(file: Path) -> None:
    file.write_text(with_read(4, ", {value: 8, constraints: {namespace: orders}}"))
    settings = DynamicSettings(file=file)
    assert (settings.get(READ), settings.get(READ, HERE)) == (4, 8)
    settings = DynamicSettings(file=file, overrides={"matching.NUMTASKQUEUEREADPARTITIONS": 2})
    assert (settings.get(READ), settings.get(READ, HERE)) == (2, 2)


def test_a_rule_has_the_line_that_its_value_comes_from(file: Path) -> None:
    rule = DynamicSettings(file=file).rule(READ, HERE)
    assert rule is not None
    assert rule.line == 1
    rule = DynamicSettings(overrides={READ.key: 3}).rule(READ, HERE)
    assert rule is not None
    assert rule.line is None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("a: [", "the file is not YAML"), ("a: 1", "'a' is not a setting"), (None, "No such file")],
)
def test_an_invalid_file_is_rejected_at_the_start(file: Path, content: str | None, complaint: str) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(InvalidSettings, match=complaint) as raised:
        DynamicSettings(file=file)
    assert str(file) in str(raised.value)


def test_a_path_that_is_not_a_regular_file_is_rejected_without_blocking(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(InvalidSettings, match="is not a regular file"):
            DynamicSettings(file=path)


def test_a_changed_file_is_loaded_once(file: Path) -> None:
    settings = DynamicSettings(file=file)
    assert settings.reload().outcome is Outcome.UNCHANGED
    file.write_text(with_read(5))
    reload = settings.reload()
    assert reload.outcome is Outcome.LOADED
    assert reload.changed == (READ,)
    assert settings.get(READ, HERE) == 5
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.UNCHANGED] * 3


def test_a_file_rewritten_with_the_same_content_changes_nothing(file: Path) -> None:
    settings = DynamicSettings(file=file)
    file.write_text(with_read(4))
    os.utime(file, ns=(1, 1))
    assert settings.reload().outcome is Outcome.UNCHANGED


def test_a_new_comment_is_loaded_but_changes_no_setting(file: Path) -> None:
    settings = DynamicSettings(file=file)
    file.write_text("# why\n" + with_read(4))
    reload = settings.reload()
    assert (reload.outcome, reload.changed) == (Outcome.LOADED, ())
    rule = settings.rule(READ)
    assert rule is not None
    assert rule.line == 2


def test_a_file_replaced_by_a_rename_is_loaded(file: Path) -> None:
    settings = DynamicSettings(file=file)
    for value in (5, 6):
        new = file.with_suffix(".new")
        new.write_text(with_read(value))
        new.replace(file)
        assert settings.reload().outcome is Outcome.LOADED
        assert settings.get(READ) == value


def test_a_symbolic_link_with_a_new_target_is_loaded(file: Path, tmp_path: Path) -> None:
    """Kubernetes replaces mounted files in this way."""
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


def test_an_unchanged_file_is_not_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = DynamicSettings(file=file)
    settings.reload()

    def refuse(_: Path) -> None:
        raise AssertionError

    monkeypatch.setattr(source_module, "read_file", refuse)
    assert settings.reload().outcome is Outcome.UNCHANGED


@pytest.mark.parametrize("bad", [with_read(0), "a: [", with_read(9) + "unknown: []", "x" * 2_000_000])
def test_an_invalid_file_is_reported_once_and_the_last_valid_one_stays(file: Path, bad: str) -> None:
    """FL-73."""
    settings = DynamicSettings(file=file)
    file.write_text(bad)
    reload = settings.reload()
    assert reload.outcome is Outcome.REFUSED
    assert reload.problems
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.UNCHANGED] * 3
    assert settings.get(READ) == 4


def test_each_invalid_version_of_the_file_is_reported_once(file: Path) -> None:
    settings = DynamicSettings(file=file)
    outcomes = []
    for text in ("a: [", "b: [", with_read(4), with_read(6)):
        file.write_text(text)
        outcomes += [settings.reload().outcome, settings.reload().outcome]
    reported = [Outcome.REFUSED, Outcome.UNCHANGED] * 2 + [Outcome.LOADED, Outcome.UNCHANGED] * 2
    assert outcomes == reported
    assert settings.get(READ) == 6


def test_a_deleted_file_is_reported_once_and_the_last_valid_one_stays(file: Path) -> None:
    settings = DynamicSettings(file=file)
    file.unlink()
    assert settings.reload().outcome is Outcome.MISSING
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.UNCHANGED] * 3
    assert settings.get(READ) == 4
    file.write_text(with_read(4))
    assert settings.reload().outcome is Outcome.LOADED


def test_a_file_replaced_by_a_folder_is_reported_once(file: Path) -> None:
    settings = DynamicSettings(file=file)
    file.unlink()
    file.mkdir()
    reload = settings.reload()
    assert reload.outcome is Outcome.REFUSED
    assert "is not a regular file" in str(reload.problems[0])
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.UNCHANGED] * 3
    file.rmdir()
    assert [settings.reload().outcome for _ in range(3)] == [Outcome.MISSING, Outcome.UNCHANGED, Outcome.UNCHANGED]
    assert settings.get(READ) == 4


def test_a_listener_gets_each_new_value_of_its_scope_and_no_other(file: Path) -> None:
    settings = DynamicSettings(file=file)
    reported: list[tuple[str, Any]] = []

    def subscribe(name: str, setting: Setting[Any], scope: Scope) -> Any:
        return settings.subscribe(setting, lambda value: reported.append((name, value)), scope)

    end = subscribe("here", READ, HERE)
    subscribe("elsewhere", READ, Scope("payments"))
    subscribe("other", matching.NUM_WRITE_PARTITIONS, HERE)
    file.write_text(with_read(4, ", {value: 8, constraints: {namespace: orders}}"))
    settings.reload()
    assert reported == [("here", 8)]
    file.write_text("a: [")
    settings.reload()
    assert reported == [("here", 8)]
    end()
    end()
    file.write_text(with_read(5))
    settings.reload()
    assert reported == [("here", 8), ("elsewhere", 5)]


def test_a_listener_of_many_scopes_gets_the_new_values_of_those_that_are_there_at_the_change(file: Path) -> None:
    settings = DynamicSettings(file=file)
    reported: list[tuple[str, int]] = []
    names = ["checkout"]

    def note(name: str, value: int) -> None:
        reported.append((name, value))

    def scopes() -> Iterator[tuple[Scope, Callable[[Any], None]]]:
        for name in names:
            yield Scope("orders", name), partial(note, name)

    end = settings.subscribe_scopes((READ, matching.NUM_WRITE_PARTITIONS), scopes)
    names.append("refunds")
    file.write_text(with_read(4, ", {value: 8, constraints: {taskQueueName: refunds}}"))
    settings.reload()
    assert reported == [("refunds", 8)]
    file.write_text(with_read(6))
    settings.reload()
    assert reported == [("refunds", 8), ("checkout", 6), ("refunds", 6)]
    end()
    file.write_text(with_read(7))
    settings.reload()
    assert len(reported) == 3


def test_a_cached_value_is_not_used_after_a_change(file: Path) -> None:
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


def test_a_failing_listener_does_not_stop_the_others(file: Path) -> None:
    settings = DynamicSettings(file=file)
    reported: list[int] = []

    def fail(_: int) -> None:
        raise ZeroDivisionError

    settings.subscribe(READ, fail)
    settings.subscribe(READ, reported.append)
    file.write_text(with_read(5))
    with pytest.raises(ExceptionGroup, match="listeners failed; the new settings are in force"):
        settings.reload()
    assert reported == [5]
    assert settings.get(READ) == 5
    assert settings.reload().outcome is Outcome.UNCHANGED


def test_the_number_of_cached_values_is_bounded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "CACHED_VALUES_MAX", 10)
    file.write_text(with_read(4, ", {value: 8, constraints: {namespace: orders}}"))
    settings = DynamicSettings(file=file)
    for number in range(100):
        assert settings.get(READ, Scope(f"namespace {number}")) == 4
        assert settings.get(READ, HERE) == 8
        assert len(settings._cache) <= 10


def test_values_on_the_command_line_are_json() -> None:
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
def test_a_value_on_the_command_line_that_is_not_json_is_rejected(texts: list[str], complaint: str) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        parse_overrides(texts)


def test_all_problems_of_the_command_line_are_reported_together() -> None:
    overrides: dict[str, Plain] = {
        "matching.numTasklistReadPartition": 3,
        "matching.numTasklistWritePartitions": 0,
        "matching.numTasklistReadPartitions": 3,
        "matching.numTaskqueueReadPartitions": 4,
        "matching.partitionUpscaleRPS": float("nan"),
    }
    with pytest.raises(InvalidSettings, match="the command line has 4 problems") as raised:
        DynamicSettings(overrides=overrides)
    assert [str(problem) for problem in raised.value.problems] == [
        "'matching.numTasklistReadPartition' is not a setting: did you mean matching.numTasklistReadPartitions?",
        "matching.numTasklistWritePartitions: '0' is out of bounds: choose 1 to 10000",
        f"matching.numTaskqueueReadPartitions is another spelling of {READ.key}, which is also given: keep one",
        "matching.partitionUpscaleRPS: 'NaN' is out of bounds: choose 0.001 to 1e+09",
    ]


def test_file_and_command_line_are_validated_together(file: Path) -> None:
    minimum, maximum = matching.MINIMUM_WRITE_PARTITIONS.key, matching.MAXIMUM_WRITE_PARTITIONS.key
    file.write_text(f"{minimum}: [{{value: 150}}]")
    assert DynamicSettings(file=file, overrides={maximum: 200}).get(matching.MINIMUM_WRITE_PARTITIONS) == 150
    with pytest.raises(InvalidSettings, match=r"is 150 \(everywhere\), above matching.taskListMaximumWritePartitions"):
        DynamicSettings(file=file)
    with pytest.raises(InvalidSettings, match="the command line has 1 problem: "):
        DynamicSettings(overrides={minimum: 150})


def test_a_get_costs_about_a_dictionary_lookup(file: Path) -> None:
    """A get takes about 1.5 times as long as a dictionary lookup, or 4 times with rules, in minimum CPU time.

    The loops alternate and are shorter than a scheduler time slice, so that other load on the machine affects all of
    them equally.
    """
    file.write_text(with_read(4, ", {value: 8, constraints: {namespace: orders}}"))
    settings = DynamicSettings(file=file)
    dictionary = {HERE: 8}
    child = matching.FORWARDER_MAX_CHILDREN_PER_NODE
    timers = [
        timeit.Timer(statement, timer=time.thread_time)
        for statement in (
            lambda: dictionary.get(HERE),
            lambda: settings.get(child, HERE),
            lambda: settings.get(READ, HERE),
        )
    ]
    rounds = [[timer.timeit(number=1_000) for timer in timers] for _ in range(100)]
    best = [min(times) for times in zip(*rounds, strict=True)]
    assert best[1] < best[0] * 4
    assert best[2] < best[0] * 10


def named(constraint: str) -> str:
    return with_read(4, f", {{value: 8, constraints: {{namespace: {constraint}, taskQueueName: checkout}}}}")


@pytest.mark.parametrize("constraint", ["orders", "id-1"])
def test_a_rule_matches_a_namespace_by_its_name_and_by_its_id(file: Path, constraint: str) -> None:
    file.write_text(named(constraint))
    settings, names = DynamicSettings(file=file), NamespaceNames()
    names.put("id-1", "orders")
    settings.use_names(names)
    rule = settings.rule(READ, Scope("id-1", "checkout"))
    assert rule is not None
    assert (settings.get(READ, Scope("id-1", "checkout")), rule.value) == (8, 8)
    assert settings.get(READ, Scope("id-2", "checkout")) == 4


def test_a_rule_by_namespace_id_overrides_a_rule_by_name(file: Path) -> None:
    both = ", {value: 8, constraints: {namespace: orders}}, {value: 16, constraints: {namespace: id-1}}"
    file.write_text(with_read(4, both))
    settings, names = DynamicSettings(file=file), NamespaceNames()
    names.put("id-1", "orders")
    settings.use_names(names)
    assert settings.get(READ, Scope("id-1")) == 16


def test_listeners_get_a_new_value_when_a_namespace_gets_or_loses_a_name(file: Path) -> None:
    file.write_text(named("orders"))
    settings, names = DynamicSettings(file=file), NamespaceNames()
    settings.use_names(names)
    heard: list[tuple[str, int]] = []
    for namespace_id in ("old", "new"):

        def hear(value: int, namespace_id: str = namespace_id) -> None:
            heard.append((namespace_id, value))

        settings.subscribe(READ, hear, Scope(namespace_id, "checkout"))
    assert settings.get(READ, Scope("old", "checkout")) == 4
    names.put("old", "orders")
    assert settings.get(READ, Scope("old", "checkout")) == 8
    names.put("unmentioned", "shipping")
    # The namespace is deleted, and a new one with the same name is created.
    names.put("new", "orders")
    assert heard == [("old", 8), ("old", 4), ("new", 8)]
    assert [settings.get(READ, Scope(each, "checkout")) for each in ("old", "new")] == [4, 8]


def test_a_reload_notifies_a_listener_whose_namespace_is_named_in_the_file(file: Path) -> None:
    settings, names = DynamicSettings(file=file), NamespaceNames()
    names.put("id-1", "orders")
    settings.use_names(names)
    heard: list[int] = []
    settings.subscribe(READ, heard.append, Scope("id-1", "checkout"))
    file.write_text(named("orders"))
    assert settings.reload().outcome is Outcome.LOADED
    assert heard == [8]
