"""The settings file: its format, and the errors of an invalid file."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import TaskType
from fairlead.core.routing import GradualChange
from fairlead.settings import EVERYWHERE, SETTINGS, ParsedFile, Scope, parse_file
from fairlead.settings.document import DEPTH_MAX, FILE_BYTES_MAX, NODES_MAX
from fairlead.settings.dynamic import matching
from fairlead.settings.dynamic.file import PROBLEMS_MAX

READ = "matching.numTasklistReadPartitions"
# Time limit in seconds, generous for a slow machine; without the checks, a file here would take minutes or all memory.
SECONDS_MAX = 20.0


def parse(text: str) -> ParsedFile:
    return parse_file(text.encode(), SETTINGS)


def values_of(text: str) -> dict[tuple[str, Scope], Any]:
    parsed = parse(text)
    assert parsed.problems == ()
    return {(rule.setting.key, rule.within): rule.value for rule in parsed.rules}


def complaints_of(text: str) -> list[str]:
    return [str(problem) for problem in parse(text).problems]


def test_a_file_in_temporals_format_is_read() -> None:
    """FL-72."""
    assert values_of(
        """
matching.numTaskqueueReadPartitions:
  - value: 4
  - value: 8
    constraints:
      namespace: orders
  - value: 16
    constraints: {namespace: orders, taskQueueName: checkout, taskType: 2}
matching.longPollExpirationInterval:
  - value: 30s
    constraints:
"""
    ) == {
        (READ, EVERYWHERE): 4,
        (READ, Scope("orders")): 8,
        (READ, Scope("orders", "checkout", TaskType.ACTIVITY)): 16,
        ("matching.longPollExpirationInterval", EVERYWHERE): 30.0,
    }


def test_cadences_constraint_names_are_accepted() -> None:
    text = f"{READ}: [{{value: 2, constraints: {{domainName: d, taskListName: t, taskType: decision}}}}]"
    assert values_of(text) == {(READ, Scope("d", "t", TaskType.WORKFLOW)): 2}


@pytest.mark.parametrize(
    ("written", "task_type"),
    [
        ("workflow", TaskType.WORKFLOW),
        ("Activity", TaskType.ACTIVITY),
        ("TASK_QUEUE_TYPE_NEXUS", TaskType.NEXUS),
        ("1", TaskType.WORKFLOW),
        ("2", TaskType.ACTIVITY),
        ("3", TaskType.NEXUS),
    ],
)
def test_a_task_type_can_be_a_name_or_temporals_number(written: str, task_type: TaskType) -> None:
    text = f"{READ}: [{{value: 2, constraints: {{TASKTYPE: {written}}}}}]"
    assert values_of(text) == {(READ, Scope(type=task_type)): 2}


def test_a_gradual_change_is_read() -> None:
    """MC-15."""
    value = "{old: 0, new: 8, start: 1970-01-01T00:00:00Z, end: 1970-01-02T00:00:00Z}"
    text = f"matching.spreadRoutingBatchSize: [{{value: {value}}}]"
    expected = GradualChange(old=0, new=8, start_s=0.0, end_s=86_400.0)
    assert values_of(text) == {("matching.spreadRoutingBatchSize", EVERYWHERE): expected}


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}", "null", "---\n", f"{READ}: []"])
def test_a_file_without_settings_is_valid(text: str) -> None:
    assert values_of(text) == {}


def test_keys_can_have_any_case() -> None:
    assert values_of(f"{READ.upper()}: [{{value: 3}}]") == {(READ, EVERYWHERE): 3}


def test_two_spellings_with_the_same_value_are_valid() -> None:
    text = f"{READ}: [{{value: 3}}]\nmatching.numTaskqueueReadPartitions: [{{value: 3}}]"
    assert values_of(text) == {(READ, EVERYWHERE): 3}


def test_two_spellings_with_different_values_are_rejected() -> None:
    other = "matching.numTaskqueueReadPartitions"
    assert complaints_of(f"{READ}: [{{value: 3}}]\n{other}: [{{value: 4}}]") == [
        f"line 2: {other} is another spelling of {READ}, which has other values: keep one"
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "matching.numTasklistReadPartition: []",
            f"'matching.numTasklistReadPartition' is not a setting: did you mean {READ}?",
        ),
        ("<<: {a: 1}", "'<<' is not a setting"),
        ("? [a]\n: 1", "a key is not text"),
        ("[1, 2]", "the file is not a mapping"),
        ("just text", "the file is not a mapping"),
        (f"{READ}: [{{value: 3}}]\n{READ}: [{{value: 3}}]", "line 2: "),
        (f"{READ}: 4", "has no list of values: write `- value: ...` below it"),
        (f"{READ}: {{value: 4}}", "has no list of values"),
        (f"{READ}: [4]", "an entry is not a mapping"),
        (f"{READ}: [{{}}]", "an entry has nothing"),
        (f"{READ}: [{{values: 4}}]", "an entry has 'values'"),
        (f"{READ}: [{{value: 4, constraint: {{}}}}]", "an entry has 'value', 'constraint'"),
        (f"{READ}: [{{value: 4, value: 4}}]", "has the key 'value' twice"),
        (f"{READ}: [{{value: 4, 1: 4}}]", "has a key that is not text"),
        (f"{READ}: [{{value: 4}}, {{value: 5}}]", "the constraints (everywhere) were given on line 1"),
        (f"{READ}: [{{value: 0}}]", "0 is out of bounds: choose 1 to 10000"),
        (f"{READ}: [{{value: 1}}, {{value: 0, constraints: {{namespace: n}}}}]", "for namespace n: 0 is out of bounds"),
        (f"{READ}: [{{value: '4'}}]", "'4' is not a whole number"),
        (f"{READ}: [{{value: 4.5}}]", "4.5 is not a whole number"),
        (f"{READ}: [{{value: yes}}]", "true is not a whole number"),
        (f"{READ}: [{{value: }}]", "null is not a whole number"),
        (f"{READ}: [{{value: [1]}}]", "a list is not a whole number"),
        (f"{READ}: [{{value: {{a: 1}}}}]", "a mapping is not a whole number"),
        (f"{READ}: [{{value: 1:30}}]", "'1:30' is not a whole number"),
        (f"{READ}: [{{value: !!python/object:os.system x}}]", "has the type tag:yaml.org,2002:python/object:os.system"),
        (f"{READ}: [{{value: !!int x}}]", "can't be read as the number or bool"),
        (f"{READ}: [{{value: !!bool x}}]", "can't be read as the number or bool"),
        ("matching.partitionUpscaleRPS: [{value: .nan}]", "NaN is out of bounds"),
        ("matching.partitionUpscaleRPS: [{value: .inf}]", "Infinity is out of bounds"),
        ("matching.partitionUpscaleRPS: [{value: -.inf}]", "-Infinity is out of bounds"),
        ("matching.longPollExpirationInterval: [{value: .nan}]", "NaN is not finite"),
        ("matching.longPollExpirationInterval: [{value: 10 seconds}]", "'10 seconds' is not a duration"),
        (f"{READ}: [{{value: 4, constraints: [a]}}]", "the constraints are not a mapping"),
        (f"{READ}: [{{value: 4, constraints: {{shardID: 1}}}}]", "'shardID' is unknown: use namespace"),
        (f"{READ}: [{{value: 4, constraints: {{namespace: 1}}}}]", "'namespace' is 1, not text: put it in quotes"),
        (f"{READ}: [{{value: 4, constraints: {{namespace: ''}}}}]", "'namespace' has 0 characters"),
        (f"{READ}: [{{value: 4, constraints: {{taskQueueName: ''}}}}]", "task queue name is empty"),
        (f"{READ}: [{{value: 4, constraints: {{taskQueueName: /_sys/a/1}}}}]", "kept for partitions"),
        (f"{READ}: [{{value: 4, constraints: {{taskType: 0}}}}]", "is 0: use workflow (1)"),
        (f"{READ}: [{{value: 4, constraints: {{taskType: true}}}}]", "is true: use workflow (1)"),
        (f"{READ}: [{{value: 4, constraints: {{taskType: both}}}}]", "is 'both': use workflow (1)"),
        (f"{READ}: [{{value: 4, constraints: {{domainName: d, taskType: 1}}}}]", "different types in Cadence and in"),
        (
            f"{READ}: [{{value: 4, constraints: {{domainName: d, namespace: d}}}}]",
            "is a second name of a given constraint",
        ),
        ("limit.maxIDLength: [{value: 4, constraints: {namespace: n}}]", "the setting's scope is global"),
        ("limit.blobSize.error: [{value: 4, constraints: {taskQueueName: t}}]", "the setting's scope is namespace"),
        ("matching.taskListMinimumWritePartitions: [{value: 101}]", "is 101 (everywhere), above matching.taskListMax"),
        (
            "matching.taskListMinimumWritePartitions: [{value: 1}, {value: 101, constraints: {namespace: n}}]",
            "matching.taskListMinimumWritePartitions is 101 (namespace n), above",
        ),
        ("system.membershipExpiry: [{value: 500ms}]", "system.membershipHeartbeatInterval is 1s (everywhere), above"),
    ],
)
def test_an_error_names_key_value_and_line(text: str, complaint: str) -> None:
    (reported,) = complaints_of(text)
    assert reported.startswith("line ")
    assert complaint in reported


def test_all_problems_are_reported_together_in_line_order() -> None:
    text = """\
matching.unknown: [{value: 1}]
matching.numTasklistReadPartitions:
  - value: 0
    constraints:
      taskType: 9
  - value: nothing
matching.forwarderMaxRatePerSecond: 3
"""
    assert [problem.line for problem in parse(text).problems] == [1, 3, 5, 6, 7]


def test_a_raised_maximum_allows_a_raised_minimum() -> None:
    minimum = "matching.taskListMinimumWritePartitions: [{value: 101}]"
    maximum = "matching.taskListMaximumWritePartitions: [{value: 200}]"
    assert len(values_of(f"{minimum}\n{maximum}")) == 2


def test_the_number_of_reported_problems_is_bounded() -> None:
    problems = complaints_of("\n".join(f"unknown{number}: 1" for number in range(10_000)))
    assert len(problems) == PROBLEMS_MAX + 1
    assert problems[-1] == "these are the first 100 problems: there may be more"


LAUGHS = "a: &a [ha, ha]\n" + "\n".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (LAUGHS.encode(), "line 2: the alias *a is not supported: write the value out"),
        (b"a: &a [*a]", "the alias *a is not supported"),
        (b"[" * FILE_BYTES_MAX, f"nested deeper than {DEPTH_MAX} levels"),
        (b"- " * (FILE_BYTES_MAX // 2), "nested deeper than"),
        (b"{a: " * (FILE_BYTES_MAX // 4), "nested deeper than"),
        (b"{" + b"a," * (FILE_BYTES_MAX // 2 - 1) + b"}", f"more than {NODES_MAX} keys and values"),
        (b"a" * (FILE_BYTES_MAX + 1), f"larger than {FILE_BYTES_MAX} bytes"),
        (b"a: 1\n---\nb: 2", "line 2: a second document begins here"),
        (b"a: \xff", "line 1: the file is not UTF-8 text"),
        (b"a: [1,\nb: }", "line 2: the file is not YAML"),
        (b"a: 'open", "the file is not YAML"),
        (b"\0" * 1000, "the file is not YAML"),
        (b"a:\n\t- b", "line 2: the file is not YAML"),
        (f"{READ}: [{{value: {'9' * 1_000_000}}}]".encode(), "a number of more than 64 characters"),
        (f"{READ}: [{{value: 1{':59' * 300_000}}}]".encode(), "is not a whole number"),
    ],
)
def test_corrupt_and_malicious_files_are_rejected_in_bounded_time(content: bytes, complaint: str) -> None:
    """FL-73."""
    started_s = time.process_time()
    (problem,) = parse_file(content, SETTINGS).problems
    assert time.process_time() - started_s < SECONDS_MAX
    assert complaint in str(problem)
    assert len(str(problem)) < 500


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!'\"#%?|>\n\t 1.,<", max_size=80).map(str.encode))
def test_the_parser_handles_any_content(content: bytes) -> None:
    parsed = parse_file(content, SETTINGS)
    assert parsed.rules == ()


@given(
    st.recursive(
        st.sampled_from(["1", "x", ".nan", "", "true", "!!int q", "'5'", "2026-01-01", "0x_", "1:2"]),
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
            | st.dictionaries(
                st.sampled_from(["value", "constraints", "namespace", "taskType", "old"]), inner, max_size=3
            ).map(lambda items: "{" + ", ".join(f"{key}: {value}" for key, value in items.items()) + "}")
        ),
        max_leaves=8,
    ),
    st.sampled_from([READ, matching.SPREAD_ROUTING_BATCH_SIZE.key, matching.FAIRNESS_KEY_WEIGHTS.key]),
)
def test_any_value_of_a_key_is_accepted_or_rejected(below: str, key: str) -> None:
    parsed = parse(f"{key}: {below}")
    for rule in parsed.rules if not parsed.problems else ():
        assert rule.setting.kind.parse(rule.setting.kind.plain(rule.value)) == rule.value
