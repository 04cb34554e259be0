"""The times of a schedule in words, as the server describes them."""

from datetime import UTC, datetime, timedelta

from temporalio.api.workflowservice.v1 import DescribeScheduleRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    ScheduleRange,
    ScheduleSpec,
)

from fairlead.console.schedule_words import spec_words
from tests.console.web import running_console

HOUR = timedelta(hours=1)
SPECS = {
    "never": (ScheduleSpec(), ["never: it only runs when it is triggered"]),
    "interval": (
        ScheduleSpec(intervals=[ScheduleIntervalSpec(every=2 * HOUR, offset=timedelta(minutes=5))]),
        ["every 2h, 5m after the full interval"],
    ),
    "weekdays": (
        ScheduleSpec(
            calendars=[
                ScheduleCalendarSpec(
                    hour=[ScheduleRange(9)], minute=[ScheduleRange(30)], day_of_week=[ScheduleRange(1, 5)]
                )
            ],
            time_zone_name="Europe/Berlin",
            jitter=timedelta(seconds=30),
        ),
        [
            "at 09:30 on Monday to Friday",
            "each delayed by a random time of up to 30 s",
            "in the time zone Europe/Berlin",
        ],
    ),
    "quarters": (
        ScheduleSpec(
            calendars=[
                ScheduleCalendarSpec(
                    hour=[ScheduleRange(0, 23)], day_of_month=[ScheduleRange(1)], month=[ScheduleRange(1, 12, 3)]
                )
            ],
            skip=[ScheduleCalendarSpec(hour=[ScheduleRange(0, 5)], year=[ScheduleRange(2030)])],
            start_at=datetime(2026, 1, 1, tzinfo=UTC),
        ),
        [
            "every hour at :00 on day 1 of the month in January to December, every 3.",
            "except at hour 0 to 5, minute 0 in 2030",
            "not before 2026-01-01 00:00:00 UTC",
            "in the time zone UTC",
        ],
    ),
    "cron": (ScheduleSpec(cron_expressions=["*/15 8-17 * * *"]), ["at hour 8 to 17, minute 0 to 59, every 15."]),
}


async def test_every_kind_of_specification_has_words() -> None:
    async with running_console() as (server, _):
        client = await Client.connect(str(server.frontend_address))
        for name, (spec, expected) in SPECS.items():
            action = ScheduleActionStartWorkflow("Any", id=name, task_queue="q")
            await client.create_schedule(name, Schedule(action=action, spec=spec))
            found = await client.workflow_service.describe_schedule(
                DescribeScheduleRequest(namespace="default", schedule_id=name)
            )
            words = spec_words(found.schedule.spec)
            assert words[: len(expected)] == expected, name


async def test_a_bad_token_of_a_page_says_where_to_begin() -> None:
    async with running_console() as (_, visitor):
        for path in ("schedules", "namespaces"):
            reply = await visitor.get(f"{path}.json", after="x")
            assert reply.status == 400, path
