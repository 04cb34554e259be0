"""Conversion of times and durations from and to protobuf."""

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskScheduledEventAttributes

from fairlead.api.times import in_seconds, set_duration, set_timestamp, to_duration, to_timestamp


@pytest.mark.parametrize("duration_ns", [0, 1, 10_000_000_000, 1_500_000_001, 2**70])
def test_a_duration_set_within_a_message_equals_a_new_one(duration_ns: int) -> None:
    attributes = WorkflowTaskScheduledEventAttributes()
    set_duration(attributes.start_to_close_timeout, duration_ns)
    assert attributes.HasField("start_to_close_timeout")
    assert attributes.start_to_close_timeout == to_duration(duration_ns)


def test_a_duration_and_a_time_in_seconds() -> None:
    assert in_seconds(to_duration(1_500_000_000)) == 1.5
    assert in_seconds(to_timestamp(-500_000_000)) == -0.5


def test_setting_a_duration_replaces_all_of_it() -> None:
    target = Duration(seconds=3, nanos=4)
    set_duration(target, 0)
    assert target == Duration()


@pytest.mark.parametrize("time_ns", [0, 1, 1_700_000_000_123_456_789, -5, 2**70])
def test_a_time_set_within_a_message_equals_a_new_one(time_ns: int) -> None:
    event = HistoryEvent(event_time=Timestamp(seconds=1, nanos=2))
    set_timestamp(event.event_time, time_ns)
    assert event.event_time == to_timestamp(time_ns)
