"""Records when the reference server fires each spec, in `reference_specs.json`, for `test_spec`.

Run by hand against a development server: `python tests/api/schedules/record_reference.py 127.0.0.1:7233`.
"""

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio.api.common.v1 import WorkflowType
from temporalio.api.schedule.v1 import Schedule, ScheduleAction, ScheduleSpec
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CreateScheduleRequest,
    DeleteScheduleRequest,
    DescribeScheduleRequest,
    ListScheduleMatchingTimesRequest,
)
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

RECORDED = Path(__file__).with_name("reference_specs.json")


def _cron(*texts: str, **rest: object) -> dict[str, object]:
    return {"cronString": list(texts), **rest}


def _every(interval: str, phase: str = "0s", **rest: object) -> dict[str, object]:
    return {"interval": [{"interval": interval, "phase": phase}], **rest}


def _calendar(**fields: str) -> dict[str, object]:
    return {"calendar": [fields]}


_NIGHT = {"second": [{}], "minute": [{}], "hour": [{"start": 2, "end": 3}], "dayOfMonth": [{"start": 1, "end": 31}]}
_ALWAYS = {"month": [{"start": 1, "end": 12}], "dayOfWeek": [{"start": 0, "end": 6}]}

# By name: the spec, and the beginning and end of the time range.
CASES: dict[str, tuple[dict[str, object], str, str]] = {
    "every 5 minutes": (_every("300s"), "2026-03-01T10:02:30Z", "2026-03-01T11:00:00Z"),
    "every hour from one": (_every("3600s"), "2026-03-01T10:00:00Z", "2026-03-01T15:00:00Z"),
    "every hour with a phase": (_every("3600s", "1140s"), "2026-03-01T10:00:00Z", "2026-03-01T15:00:00Z"),
    "every 7 hours": (_every("25200s", "3600s"), "2026-03-01T00:00:00Z", "2026-03-04T00:00:00Z"),
    "every 28 days": (_every("2419200s", "278580s"), "2022-01-01T00:00:00Z", "2022-12-31T00:00:00Z"),
    "fractions are cut": (_every("90.9s", "10.9s"), "2026-03-01T00:00:00Z", "2026-03-01T00:10:00Z"),
    "before 1970": (_every("3600s"), "1969-12-31T20:30:00Z", "1970-01-01T03:00:00Z"),
    "two intervals": (
        {"interval": [{"interval": "600s"}, {"interval": "420s"}]},
        "2026-03-01T00:00:00Z",
        "2026-03-01T01:00:00Z",
    ),
    "cron every minute": (_cron("* * * * *"), "2026-03-01T10:00:00Z", "2026-03-01T10:10:00Z"),
    "cron working hours": (_cron("30 9-17 * * mon-fri"), "2026-03-06T12:00:00Z", "2026-03-09T12:00:00Z"),
    "cron steps": (_cron("5/20 */6 * * *"), "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"),
    "cron range with step": (_cron("10-40/15 1,3-5 * * *"), "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"),
    "cron day and weekday must both fit": (_cron("0 0 13 * fri"), "2026-01-01T00:00:00Z", "2028-01-01T00:00:00Z"),
    "cron sunday is 7": (_cron("0 12 * * 7"), "2026-03-01T00:00:00Z", "2026-03-31T00:00:00Z"),
    "cron 5 to 7": (_cron("0 12 * * 5-7"), "2026-03-01T00:00:00Z", "2026-03-20T00:00:00Z"),
    "cron month names": (_cron("0 0 1 feb,June-august *"), "2026-01-01T00:00:00Z", "2027-03-01T00:00:00Z"),
    "cron six fields": (_cron("0 0 1 1 * 2027-2030"), "2026-01-01T00:00:00Z", "2035-01-01T00:00:00Z"),
    "cron seven fields": (_cron("*/15 30 12 * * wed *"), "2026-03-01T00:00:00Z", "2026-03-12T00:00:00Z"),
    "cron with comment": (_cron("0 3 * * * # the nightly one"), "2026-03-01T00:00:00Z", "2026-03-03T00:00:00Z"),
    "cron hourly": (_cron("@hourly"), "2026-03-01T00:00:00Z", "2026-03-01T06:00:00Z"),
    "cron daily": (_cron("@daily"), "2026-03-01T00:00:00Z", "2026-03-06T00:00:00Z"),
    "cron midnight": (_cron("@midnight"), "2026-03-01T00:00:00Z", "2026-03-06T00:00:00Z"),
    "cron weekly": (_cron("@weekly"), "2026-03-01T00:00:00Z", "2026-04-06T00:00:00Z"),
    "cron monthly": (_cron("@monthly"), "2026-03-01T00:00:00Z", "2026-12-06T00:00:00Z"),
    "cron yearly": (_cron("@yearly"), "2026-03-01T00:00:00Z", "2030-12-06T00:00:00Z"),
    "cron annually": (_cron("@annually"), "2026-03-01T00:00:00Z", "2030-12-06T00:00:00Z"),
    "cron every": (_cron("@every 90m"), "2026-03-01T00:00:00Z", "2026-03-01T12:00:00Z"),
    "cron every with phase": (_cron("@every 14h/3h"), "2026-03-01T00:00:00Z", "2026-03-05T12:00:00Z"),
    "cron every in days": (_cron("@every 2d/6h"), "2026-03-01T00:00:00Z", "2026-03-15T12:00:00Z"),
    "cron every in parts": (_cron("@every 1h30m15s"), "2026-03-01T00:00:00Z", "2026-03-01T12:00:00Z"),
    "cron every with zone": (_cron("TZ=Asia/Tokyo @every 6h"), "2026-03-01T00:00:00Z", "2026-03-02T12:00:00Z"),
    "cron in a zone": (_cron("CRON_TZ=Asia/Kolkata 15 9 * * *"), "2026-03-01T00:00:00Z", "2026-03-04T12:00:00Z"),
    "two crons": (_cron("0 * * * *", "*/25 * * * *"), "2026-03-01T00:00:00Z", "2026-03-01T03:00:00Z"),
    "leap days": (_cron("0 0 29 2 *"), "2026-01-01T00:00:00Z", "2040-12-06T00:00:00Z"),
    "the 31st": (_cron("0 0 31 * *"), "2026-01-01T00:00:00Z", "2026-12-31T12:00:00Z"),
    "never": (_cron("0 0 30 2 *"), "2026-01-01T00:00:00Z", "2040-12-31T12:00:00Z"),
    "the last year": (_cron("0 0 1 1 *"), "2098-01-01T00:00:00Z", "2110-12-31T12:00:00Z"),
    "skipped hour in New York": (
        _cron("30 2 * * *", timezoneName="America/New_York"),
        "2026-03-06T00:00:00Z",
        "2026-03-11T00:00:00Z",
    ),
    "every half hour through the skipped one": (
        _cron("*/30 * * * *", timezoneName="America/New_York"),
        "2026-03-08T05:00:00Z",
        "2026-03-08T10:00:00Z",
    ),
    "repeated hour in New York": (
        _cron("*/30 1 * * *", timezoneName="America/New_York"),
        "2026-10-31T00:00:00Z",
        "2026-11-03T00:00:00Z",
    ),
    "every half hour through the repeated one": (
        _cron("*/30 * * * *", timezoneName="America/New_York"),
        "2026-11-01T04:00:00Z",
        "2026-11-01T09:00:00Z",
    ),
    "begins in the repeated hour": (
        _cron("15 1 * * *", timezoneName="America/New_York"),
        "2026-11-01T05:20:00Z",
        "2026-11-03T09:00:00Z",
    ),
    "begins in the second of the repeated hours": (
        _cron("*/20 1-2 * * *", timezoneName="America/New_York"),
        "2026-11-01T06:10:00Z",
        "2026-11-01T09:00:00Z",
    ),
    "skipped hour in Berlin": (
        _cron("0,59 1-3 * * *", timezoneName="Europe/Berlin"),
        "2026-03-28T12:00:00Z",
        "2026-03-30T09:00:00Z",
    ),
    "repeated hour in Berlin": (
        _cron("0 2 * * *", timezoneName="Europe/Berlin"),
        "2026-10-24T12:00:00Z",
        "2026-10-27T09:00:00Z",
    ),
    "midnight that does not exist": (
        _cron("0 0 * * *", timezoneName="America/Santiago"),
        "2026-09-04T00:00:00Z",
        "2026-09-08T12:00:00Z",
    ),
    "southern hemisphere": (
        _cron("30 2 * * *", timezoneName="Australia/Sydney"),
        "2026-04-03T00:00:00Z",
        "2026-04-07T00:00:00Z",
    ),
    "zone of quarter hours": (
        _cron("0 6 * * *", timezoneName="Asia/Kathmandu"),
        "2026-04-03T00:00:00Z",
        "2026-04-06T00:00:00Z",
    ),
    "calendar defaults": (_calendar(), "2026-03-01T00:00:00Z", "2026-03-04T00:00:00Z"),
    "calendar": (
        _calendar(second="10", minute="*/20", hour="8", dayOfWeek="Tuesday,thu", comment="c"),
        "2026-03-01T00:00:00Z",
        "2026-03-08T00:00:00Z",
    ),
    "calendar of a year": (
        _calendar(year="2027", month="3", dayOfMonth="5/10"),
        "2026-03-01T00:00:00Z",
        "2028-03-08T00:00:00Z",
    ),
    "structured": (
        {"structuredCalendar": [{**_NIGHT, **_ALWAYS}]},
        "2026-03-01T00:00:00Z",
        "2026-03-04T00:00:00Z",
    ),
    "structured with steps": (
        {
            "structuredCalendar": [
                {
                    **_ALWAYS,
                    "second": [{"start": 0, "end": 59, "step": 25}],
                    "minute": [{"start": 5}],
                    "hour": [{"start": 1}, {"start": 20, "end": 23, "step": 2}],
                    "dayOfMonth": [{"start": 1, "end": 31, "step": 7}],
                    "year": [{"start": 2026}],
                }
            ]
        },
        "2026-03-01T00:00:00Z",
        "2026-03-20T00:00:00Z",
    ),
    "structured without a field": (
        {"structuredCalendar": [{"hour": [{"start": 3}]}]},
        "2026-03-01T00:00:00Z",
        "2026-03-20T00:00:00Z",
    ),
    "excluded weekends": (
        _every(
            "43200s",
            excludeStructuredCalendar=[
                {
                    **_ALWAYS,
                    "second": [{"end": 59}],
                    "minute": [{"end": 59}],
                    "hour": [{"end": 23}],
                    "dayOfMonth": [{"start": 1, "end": 31}],
                    "dayOfWeek": [{"start": 6}, {"start": 0}],
                }
            ],
        ),
        "2026-03-05T00:00:00Z",
        "2026-03-12T00:00:00Z",
    ),
    "excluded by text": (
        _cron("0 * * * *", excludeCalendar=[{"hour": "2-20", "minute": "*", "second": "*"}]),
        "2026-03-05T00:00:00Z",
        "2026-03-06T00:00:00Z",
    ),
    "between start and end": (
        _every("3600s", startTime="2026-03-05T03:00:00Z", endTime="2026-03-05T06:00:00Z"),
        "2026-03-01T00:00:00Z",
        "2026-03-12T00:00:00Z",
    ),
    "start within a second": (
        _every("3600s", startTime="2026-03-05T03:00:00.5Z", endTime="2026-03-05T05:59:59.9Z"),
        "2026-03-01T00:00:00Z",
        "2026-03-12T00:00:00Z",
    ),
    "fraction of a second in the question": (
        _every("1s"),
        "2026-03-01T00:00:00.7Z",
        "2026-03-01T00:00:05.3Z",
    ),
    "calendar and interval": (
        {**_cron("10 * * * *"), **_every("2400s")},
        "2026-03-01T00:00:00Z",
        "2026-03-01T04:00:00Z",
    ),
    "no times at all": ({}, "2026-03-01T00:00:00Z", "2026-03-01T04:00:00Z"),
}


def main(address: str) -> None:
    """Record every case."""
    service = WorkflowServiceStub(grpc.insecure_channel(address))
    action = NewWorkflowExecutionInfo(
        workflow_id="w", workflow_type=WorkflowType(name="T"), task_queue=TaskQueue(name="nobody")
    )
    recorded = []
    for name, (spec, begin, end) in CASES.items():
        key: dict[str, Any] = {"namespace": "default", "schedule_id": f"recorded {name} {uuid.uuid4()}"}
        schedule = Schedule(spec=ParseDict(spec, ScheduleSpec()), action=ScheduleAction(start_workflow=action))
        schedule.state.paused = True
        service.CreateSchedule(CreateScheduleRequest(schedule=schedule, request_id=name, **key))
        span = ParseDict({"startTime": begin, "endTime": end}, ListScheduleMatchingTimesRequest(**key))
        times = MessageToDict(service.ListScheduleMatchingTimes(span)).get("startTime", [])
        described = service.DescribeSchedule(DescribeScheduleRequest(**key)).schedule.spec
        service.DeleteSchedule(DeleteScheduleRequest(**key))
        canonical = MessageToDict(described)
        recorded.append({"name": name, "spec": spec, "from": begin, "to": end, "canonical": canonical, "times": times})
    RECORDED.write_text("[\n" + ",\n".join(json.dumps(case) for case in recorded) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
