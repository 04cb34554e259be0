import asyncio
import csv
import io
import random
from collections import Counter

import pytest

from fairlead.bench.comparison import as_csv
from fairlead.bench.generator import LoadGenerator
from fairlead.bench.keys import KeyPlan
from fairlead.bench.partition_counts import PartitionCounts
from fairlead.bench.plan import LoadPlan
from fairlead.bench.result import ROWS_SHOWN_MAX, BenchResult, as_plain, show_result
from fairlead.bench.scenario_summary import summarise_scenario, turns
from fairlead.bench.scenarios import SCENARIOS
from fairlead.bench.schedule import Phase
from fairlead.bench.server_counts import ServerCounts, server_counts
from fairlead.bench.summary import summarise
from fairlead.bench.tally import ConfigSeen, Tally
from fairlead.core.partitions import PartitionConfig, TaskQueueId, TaskType
from fairlead.report import Output
from fairlead.simulations.virtual_loop import run as run_in_virtual_time
from fairlead.telemetry import Metrics
from tests.bench.fake_client import FakeBehaviour, FakeClient

TASK_QUEUE = TaskQueueId("bench", "bench", TaskType.WORKFLOW)
COUNTS = {0: PartitionCounts(adds=5, polls=9), 3: PartitionCounts(adds=7, polls=2, polls_with_task=1)}


def tally_of(plan: LoadPlan, behaviour: FakeBehaviour | None = None) -> Tally:
    async def main() -> Tally:
        return await LoadGenerator(
            [FakeClient(behaviour)],
            plan,
            task_queue=TASK_QUEUE,
            run_id=1,
            random=random.Random(1).random,
            clock=asyncio.get_running_loop().time,
        ).run()

    return run_in_virtual_time(main())[0]


def result_of(behaviour: FakeBehaviour | None = None, *, keys: int = 1) -> BenchResult:
    plan = LoadPlan(phases=(Phase(1000.0),), tasks=200, keys=KeyPlan(count=keys), drain_timeout_s=1.0)
    return summarise(tally_of(plan, behaviour), plan, COUNTS, {"rate_per_s": 1000.0})


def test_the_totals_of_a_run_are_computed_from_its_tally() -> None:
    totals = {measure.name: measure.value for measure in result_of(FakeBehaviour(add_s=0.01)).totals}
    assert totals["tasks_sent"] == totals["tasks_added"] == totals["tasks_received"] == 200
    assert totals["add_duration_s"] == pytest.approx(0.209)
    assert totals["adds_per_s"] == totals["dispatches_per_s"] == pytest.approx(200 / 0.209, abs=0.1)
    assert totals["sync_match_share"] == 0.25
    assert totals["add_forward_share"] == 0.5
    assert totals["backlog_share"] == 0.75
    assert totals["poll_forward_share"] == 0.0
    assert (totals["lost"], totals["duplicates"], totals["add_failures"], totals["poll_failures"]) == (0, 0, 0, 0)


def test_the_dispatch_rate_is_measured_from_the_first_poll_if_the_backlog_is_built_first() -> None:
    plan = LoadPlan(phases=(Phase(1000.0),), tasks=200, is_backlog_first=True, pollers=1, work_s=0.01)
    totals = {measure.name: measure.value for measure in summarise(tally_of(plan), plan, COUNTS, {}).totals}
    # 200 tasks are received with 199 pauses of 10 ms between them.
    assert totals["dispatches_per_s"] == pytest.approx(200 / 1.99, abs=0.1)


def test_the_json_output_has_all_results_by_name() -> None:
    answer = as_plain(result_of(FakeBehaviour(refuse=frozenset({3, 4}), refuse_polls=1), keys=30))
    assert list(answer) == [
        *("subject", "headline", "parameters", "totals", "waits", "keys", "partitions", "failures"),
        *("timeline", "configs"),
    ]
    assert answer["failures"] == [
        {"operation": "add", "error": "Refused", "times": 2},
        {"operation": "poll", "error": "Refused", "times": 1},
    ]
    waits = answer["waits"]
    assert isinstance(waits, list)
    assert set(waits[0]) == {
        *("of", "count", "mean_ms", "p50_ms", "p75_ms", "p90_ms", "p95_ms", "p99_ms", "p99.9_ms", "max_ms")
    }
    keys = answer["keys"]
    assert isinstance(keys, list)
    assert len(keys) == 30
    assert answer["partitions"] == [
        {"partition": 0, "adds": 5, "started_at_once": 0, "polls": 9, "polls_with_task": 0},
        {"partition": 3, "adds": 7, "started_at_once": 0, "polls": 2, "polls_with_task": 1},
    ]
    assert answer["configs"] == [{"at_s": 0.0, "version": 1, "read": 2, "write": 2}]


def test_a_long_table_is_cut_off_on_screen(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(result_of(keys=30), output=Output.TABLE, plot=None)
    shown = capsys.readouterr().out
    assert "key-00019" in shown
    assert "key-00020" not in shown
    assert f"... and {30 - ROWS_SHOWN_MAX} more, see -o json" in shown
    assert "Failures" not in shown


def test_lost_tasks_are_in_the_headline() -> None:
    result = result_of(FakeBehaviour(lose=frozenset({1, 2})))
    assert result.lost == 2
    assert result.headline == "2 ACKNOWLEDGED TASKS WERE LOST of 200"


def test_a_run_without_received_tasks_has_a_result() -> None:
    result = result_of(FakeBehaviour(refuse=frozenset(range(200))))
    assert result.headline == "no task was received; 200 ADDS FAILED"
    assert (result.failed, result.lost) == (200, 0)
    assert {measure.name: measure.value for measure in result.totals}["sync_match_share"] is None


def test_failures_are_in_the_headline() -> None:
    result = result_of(FakeBehaviour(refuse=frozenset({3, 4}), refuse_polls=1))
    assert result.headline.endswith("; 2 ADDS AND 1 POLL FAILED")
    assert result.failed == 3


def test_durations_are_never_negative_without_received_tasks() -> None:
    totals = {measure.name: measure.value for measure in result_of(FakeBehaviour(refuse=frozenset(range(200)))).totals}
    assert totals["duration_s"] == 0.0
    empty = LoadPlan(phases=(Phase(1.0),), tasks=1, duration_s=0.0, drain_timeout_s=1.0)
    answer = as_plain(summarise(tally_of(empty, FakeBehaviour(foreign=(b"",))), empty, COUNTS, {}))
    assert answer["totals"]["add_duration_s"] == answer["totals"]["duration_s"] == 0.0  # type: ignore[index]
    # A poll got its response before the load began.
    assert answer["configs"] == [{"at_s": 0.0, "version": 1, "read": 2, "write": 2}]


def test_missing_tasks_are_not_called_lost_if_a_partition_could_not_be_swept() -> None:
    plan = LoadPlan(phases=(Phase(1000.0),), tasks=200, drain_timeout_s=1.0)
    tally = tally_of(plan, FakeBehaviour(lose=frozenset({1, 2})))
    tally.unasked = 1
    result = summarise(tally, plan, COUNTS, {})
    assert (result.lost, result.unexplained) == (0, 2)
    assert result.headline.endswith("; 2 acknowledged and not received, 1 partition did not answer")
    tally.is_interrupted = True
    stopped = summarise(tally, plan, COUNTS, {})
    assert stopped.headline.startswith("STOPPED after 0.2 s: 198 tasks, ")
    assert stopped.headline.endswith("; 2 acknowledged and not received, the run was stopped")


def test_a_turn_is_a_decrease_followed_by_an_increase() -> None:
    def seen(*writes: int) -> list[ConfigSeen]:
        return [ConfigSeen(float(at), PartitionConfig(at, 9, write)) for at, write in enumerate(writes)]

    assert turns(seen()) == turns(seen(1, 3, 3, 2, 1)) == 0
    assert turns(seen(3, 2, 2, 3, 1, 4)) == 2


def test_the_summary_of_a_scenario_has_the_items_of_cadence() -> None:
    scenario = SCENARIOS["burst_adaptive"].faster(100)
    server = ServerCounts(
        {
            0: Counter(forwarded=4, sync_matches=3, backlog_matches=2),
            1: Counter(forwarded_tasks=6, forwarded_tasks_matched=5, forwarded_polls=8, forwarded_polls_matched=7),
        },
        tasks_written=11,
    )
    result = summarise_scenario(scenario, tally_of(scenario.load), COUNTS, server, {})
    totals = {measure.name: measure.value for measure in result.totals}
    assert set(totals) == {
        *("generate_duration_s", "duration_s", "tasks_generated", "tasks_preloaded", "tasks_polled"),
        *("adds_per_s", "dispatches_per_s", "lost", "unexplained", "left_behind", "duplicates"),
        *("latency_avg_ms", "latency_p50_ms", "latency_p75_ms", "latency_p95_ms", "latency_p99_ms", "latency_max_ms"),
        *("polls_with_task", "polls_with_forwarded_task", "polls_empty"),
        *("sync_matches", "sync_matches_forwarded", "async_matches", "db_writes"),
        *("poll_forwards", "poll_forwards_with_task", "polls_sent_down", "polls_sent_down_with_task"),
        *("task_forwards", "task_forwards_started"),
        *("partitions_max", "partitions_ideal", "partitions_overshoot", "partition_changes", "partition_turns"),
    }
    assert (totals["db_writes"], totals["task_forwards"], totals["task_forwards_started"]) == (11, 6, 5)
    assert (totals["poll_forwards"], totals["poll_forwards_with_task"]) == (8, 7)
    assert (totals["partitions_max"], totals["partitions_ideal"], totals["partition_changes"]) == (2, 3, 0)
    answer = as_plain(result)
    operations = answer["operations"]
    assert isinstance(operations, list)
    assert [row["operation"] for row in operations] == ["add", "poll", "poll that returned a task"]
    partitions = answer["partitions"]
    assert isinstance(partitions, list)
    assert [row["partition"] for row in partitions] == [0, 1, 3]
    assert (partitions[0]["forwards_in"], partitions[0]["sync_matches"], partitions[1]["tasks_up"]) == (
        4,
        3,
        6,
    )


def test_a_scenario_on_an_external_server_reports_only_the_load() -> None:
    scenario = SCENARIOS["default"].faster(100)
    result = summarise_scenario(scenario, tally_of(scenario.load), COUNTS, None, {})
    totals = {measure.name: measure.value for measure in result.totals}
    assert "poll_forwards" not in totals
    # Tasks that were not started at once were written: the fake starts every fourth of 30 tasks.
    assert totals["db_writes"] == 30 - 8


def test_the_counters_of_one_task_queue_are_read_by_partition() -> None:
    metrics = Metrics()
    for number, times in ((0, 3), (2, 4)):
        counts = metrics.partition("bench", "bench", TaskType.WORKFLOW, number)
        counts.forwarded_tasks += times
        counts.task_write_latency.observe(0.01)
    metrics.partition("bench", "other", TaskType.WORKFLOW, 0).forwarded_tasks += 100
    read = server_counts([metrics.snapshot()], TASK_QUEUE)
    assert {number: counts["forwarded_tasks"] for number, counts in read.partitions.items()} == {0: 3, 2: 4}
    assert read.total("forwarded_tasks") == 7
    assert read.tasks_written == 2


def test_the_csv_comparison_has_one_row_per_scenario() -> None:
    results = []
    for name in ("default", "burst_adaptive"):
        scenario = SCENARIOS[name].faster(100)
        results.append(summarise_scenario(scenario, tally_of(scenario.load), COUNTS, None, {}))
    rows = list(csv.DictReader(io.StringIO(as_csv(results))))
    assert [row["scenario"] for row in rows] == ["default", "burst_adaptive"]
    assert [row["tasks_polled"] for row in rows] == ["30", "100"]
    assert [row["partitions_ideal"] for row in rows] == ["", "3"]
