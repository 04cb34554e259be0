"""Short names of enum values in the JSON of requests."""

import json
from typing import Any

import pytest
from temporalio.api.enums.v1 import ScheduleOverlapPolicy
from temporalio.api.workflowservice.v1 import ListSchedulesRequest, PatchScheduleRequest

from fairlead.frontend.http.json_codec import InvalidJson, decode


def patch_of(policy: Any) -> PatchScheduleRequest:
    request = PatchScheduleRequest()
    decode(json.dumps({"patch": {"triggerImmediately": {"overlapPolicy": policy}}}).encode(), request)
    return request


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("Skip", ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_SKIP),
        ("AllowAll", ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL),
        ("SCHEDULE_OVERLAP_POLICY_BUFFER_ONE", ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_BUFFER_ONE),
        (3, ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_BUFFER_ALL),
    ],
)
def test_an_enum_value_is_read_from_its_short_name_its_full_name_or_its_number(
    name: Any, policy: ScheduleOverlapPolicy.ValueType
) -> None:
    assert patch_of(name).patch.trigger_immediately.overlap_policy == policy


def test_an_unknown_name_of_an_enum_value_is_refused_and_named() -> None:
    with pytest.raises(InvalidJson, match="Sometimes"):
        patch_of("Sometimes")


def test_fields_that_the_body_does_not_name_stay_when_a_body_has_a_short_name() -> None:
    request = PatchScheduleRequest(namespace="shop")
    decode(b'{"patch": {"triggerImmediately": {"overlapPolicy": "Skip"}}}', request)
    assert request.namespace == "shop"
    with pytest.raises(InvalidJson):
        decode(b'{"namespace": 7}', ListSchedulesRequest())
