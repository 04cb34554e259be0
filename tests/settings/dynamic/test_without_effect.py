"""Settings of Temporal's server without effect in Fairlead are ignored and reported; unknown ones are rejected."""

import re
import sys
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

import pytest

from fairlead.settings import (
    SETTINGS,
    ConflictingDeclarations,
    DynamicSettings,
    InvalidSettings,
    Outcome,
    Registry,
    SettingWithoutEffect,
    parse_file,
)
from fairlead.settings.dynamic import limits
from fairlead.settings.dynamic.without_effect import WITHOUT_EFFECT

FILE = b"""
history.namespaceRPS:
  - value: 100
frontend.KeepAliveMaxConnectionIdle: [{value: 5m, constraints: {namespace: orders, shardID: 7}}]
system.advancedVisibilityWritingMode: "on"
limit.maxIDLength:
  - value: 255
"""


def test_a_file_of_temporals_server_is_accepted_and_keys_without_effect_are_reported() -> None:
    parsed = parse_file(FILE, SETTINGS)
    assert parsed.problems == ()
    assert [rule.setting for rule in parsed.rules] == [limits.MAX_ID_LENGTH]
    assert parsed.without_effect == (
        "history.namespaceRPS",
        "frontend.KeepAliveMaxConnectionIdle",
        "system.advancedVisibilityWritingMode",
    )


# The keys in the sample files of Temporal's server, including those that are commented out.
SAMPLE_KEYS = (
    "component.callbacks.allowedAddresses",
    "component.nexusoperations.callback.endpoint.template",
    "frontend.enableClientVersionCheck",
    "frontend.enableExecuteMultiOperation",
    "frontend.persistenceMaxQPS",
    "frontend.throttledLogRPS",
    "frontend.workerVersioningDataAPIs",
    "frontend.workerVersioningRuleAPIs",
    "frontend.workerVersioningWorkflowAPIs",
    "history.ReplicationEnableUpdateWithNewTaskMerge",
    "history.defaultActivityRetryPolicy",
    "history.defaultWorkflowRetryPolicy",
    "history.enableChasm",
    "history.enableTransitionHistory",
    "history.enableWorkflowExecutionTimeoutTimer",
    "history.hostLevelCacheMaxSize",
    "history.persistenceMaxQPS",
    "limit.maxIDLength",
    "matching.PollerHistoryTTL",
    "matching.deploymentWorkflowVersion",
    "matching.queryWorkflowTaskTimeoutLogRate",
    "matching.wv.VersionDrainageStatusRefreshInterval",
    "matching.wv.VersionDrainageStatusVisibilityGracePeriod",
    "system.enableDeploymentVersions",
    "system.enableDeployments",
    "system.enableEagerWorkflowStart",
    "system.enableNexus",
    "system.enableParentClosePolicyWorker",
    "system.enableReadFromSecondaryVisibility",
    "system.secondaryVisibilityWritingMode",
)


@pytest.mark.parametrize("key", SAMPLE_KEYS)
def test_every_key_of_the_sample_files_is_a_setting_or_has_a_reason_for_no_effect(key: str) -> None:
    spellings = {spelling for setting in SETTINGS for spelling in setting.spellings}
    assert (key in spellings) != (key in WITHOUT_EFFECT)


_TEXT_BYTES_MAX = 8 * 1024 * 1024
_PREFIXES = (
    *("activity", "admin", "callback", "chasm", "component", "frontend", "history", "internal-frontend", "limit"),
    *("matching", "nexusoperation", "scheduler", "system", "worker"),
)
_START = re.compile(rf"(?:{'|'.join(_PREFIXES)})\.[A-Za-z]".encode())
_KEY = re.compile(rf"(?:{'|'.join(_PREFIXES)})(\.[A-Za-z][A-Za-z0-9]*)+")
# Beginnings of texts of the binary that look like keys.
_OTHER_TEXTS = (
    *("activity.activity", "activity.tmpl", "callback.encode", "callback.inspect", "chasm.MSPointer", "chasm.lib."),
    *(
        "chasm.transition",
        "component.callbacks",
        "component.name",
        "component.nexusoperationsu",
        "component.type",
        "limit.TransferStandby",
    ),
    *(
        "nexusoperation.operation",
        "nexusoperation.proto.",
        "scheduler.scheduler",
        "system.name",
        "worker.temporal.api.",
    ),
)


def _rising(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the pairs in which the second numbers never fall."""
    ends: list[int] = []
    chains: list[list[tuple[int, int]]] = []
    for pair in found:
        place = bisect_right(ends, pair[1])
        chain = [*(chains[place - 1] if place else []), pair]
        ends[place : place + 1], chains[place : place + 1] = [pair[1]], [chain]
    return chains[-1]


def _unknown_keys(known: set[str]) -> list[str]:
    """The texts in the binary of Temporal's server that look like keys of dynamic settings and are not known.

    Go stores the texts of a program next to each other, sorted by length, without separators. So the lengths of the
    known keys around a position bound the length of the text that begins there.
    """
    binary = Path(sys.executable).with_name("temporal").read_bytes()
    middle = binary.index(b"limit.blobSize.error")
    data = binary[middle - _TEXT_BYTES_MAX : middle + _TEXT_BYTES_MAX].decode("latin-1")
    starts = [match.start() for match in _START.finditer(data.encode("latin-1"))]
    length_max = max(map(len, known))
    lengths = {
        at: max((size for size in range(length_max + 1) if data[at : at + size] in known), default=0) for at in starts
    }
    anchors = _rising([(at, length) for at, length in lengths.items() if length])
    assert len(anchors) > 600
    unknown = []
    for (after, shortest), (before, longest) in pairwise(anchors):
        for at in (at for at in starts if after < at < before and not data.startswith(_OTHER_TEXTS, at)):
            texts = [data[at : at + length] for length in range(shortest, longest + 1)]
            if not known.intersection(texts):
                unknown += [text for text in texts if _KEY.fullmatch(text)][-1:]
    return unknown


def test_every_key_in_temporals_binary_is_a_setting_or_has_a_reason_for_no_effect() -> None:
    known = {*WITHOUT_EFFECT, *(spelling for setting in SETTINGS for spelling in setting.spellings)}
    assert _unknown_keys(known) == []
    # The search finds a key that is missing in the list.
    (found,) = _unknown_keys(known - {"history.outboundQueue.circuitBreakerSettings"})
    assert found.startswith("history.outboundQueue.circuitBreakerSettings")


def test_a_nested_value_of_a_setting_without_effect_is_ignored() -> None:
    nested = b"component.callbacks.allowedAddresses: [{value: [{Pattern: '*', AllowInsecure: true}]}]"
    assert parse_file(nested, SETTINGS).problems == ()


def test_a_misspelled_key_is_rejected() -> None:
    (problem,) = parse_file(b"frontend.rpss: [{value: 1}]", SETTINGS).problems
    assert "is not a setting" in problem.message


def test_the_keys_without_effect_of_command_line_and_current_file_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(FILE)
    settings = DynamicSettings(file=file, overrides={"matching.rps": 1, "history.namespaceRPS": 2})
    assert list(settings.without_effect) == [
        "matching.rps",
        "history.namespaceRPS",
        "frontend.KeepAliveMaxConnectionIdle",
        "system.advancedVisibilityWritingMode",
    ]
    file.write_text("no.such.key: [{value: 1}]")
    assert settings.reload().outcome is Outcome.REFUSED
    assert len(settings.without_effect) == 4
    file.write_text("history.rps: [{value: 1}]")
    assert settings.reload().outcome is Outcome.LOADED
    assert list(settings.without_effect) == ["matching.rps", "history.namespaceRPS", "history.rps"]


def test_the_error_for_a_key_without_effect_gives_the_reason() -> None:
    with pytest.raises(
        SettingWithoutEffect, match=r"'History\.NamespaceRPS' has no effect here: Only the frontend limits calls"
    ):
        SETTINGS.find("History.NamespaceRPS")


def test_unknown_keys_on_the_command_line_are_rejected() -> None:
    with pytest.raises(InvalidSettings, match="is not a setting"):
        DynamicSettings(overrides={"history.namespaceRPS": 1, "frontend.rpss": 1})


def test_a_key_cannot_be_both_a_setting_and_without_effect() -> None:
    with pytest.raises(ConflictingDeclarations, match="maxidlength"):
        Registry([limits.MAX_ID_LENGTH], {"limit.MaxIDLength": "Because."})


def test_every_reason_is_a_sentence() -> None:
    assert all(reason[0].isupper() or reason[0] == "`" for reason in WITHOUT_EFFECT.values())
    assert all(reason.endswith(".") for reason in WITHOUT_EFFECT.values())
