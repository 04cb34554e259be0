"""The sentence on what holds a task queue back, for every cause."""

from math import inf

import pytest

from fairlead.console.held_back import Cause, PartitionFacts, QueueFacts, held_back

BUSY = PartitionFacts(backlog=3, loaded=3, polls=0)
IDLE = PartitionFacts(backlog=0, loaded=0, polls=2)


def facts(**changes: object) -> QueueFacts:
    plain: dict[str, object] = {"name": "orders", "partitions": {0: BUSY}, "pollers": 2, "polled_s_ago": 1.0}
    return QueueFacts(**plain | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "cause", "said"),
    [
        (facts(partitions={0: IDLE}), Cause.NOTHING, "Nothing waits."),
        (facts(missing={3: "connection refused"}), Cause.HANDOVER, "Partition 3 does not answer: connection refused"),
        (
            facts(missing=dict.fromkeys(range(7), "timed out")),
            Cause.HANDOVER,
            "Partitions 0, 1, 2, 3, 4, ... do not answer",
        ),
        (facts(pollers=0, oldest_s=90.0), Cause.NO_WORKERS, "3 tasks wait, the oldest for 1m 30s"),
        (facts(pollers=0, version="app:v2"), Cause.NO_WORKERS, "No worker of version app:v2 has polled"),
        (facts(rate_per_s=0.0, rate_source="set by x"), Cause.RATE_LIMIT, "The rate limit is 0"),
        (
            facts(rate_per_s=10.0, dispatches_per_s=9.0, rate_source="set by x"),
            Cause.RATE_LIMIT,
            "The rate limit of 10 tasks per second is reached (set by x)",
        ),
        (facts(rate_per_s=10.0, dispatches_per_s=2.0), Cause.BUSY_WORKERS, "2 workers poll here"),
        (
            facts(
                partitions={0: PartitionFacts(backlog=3, loaded=3, polls=1)},
                key_rate_per_s=5.0,
                key_rate_source="set by x",
                keys_waiting=1,
            ),
            Cause.KEY_LIMIT,
            "the limit of 5 tasks per second for each key of weight 1, while polls wait (set by x).",
        ),
        (
            facts(partitions={0: IDLE, 1: BUSY}),
            Cause.PARTITION_WITHOUT_POLLS,
            "Tasks wait in partition 1, where no poll waits; 2 polls wait at others",
        ),
        (
            facts(partitions={0: PartitionFacts(backlog=3, loaded=0, polls=2)}),
            Cause.STORE,
            "stored tasks are not loaded",
        ),
        (facts(running=5, running_max=5), Cause.RUNNING_LIMIT, "5 activities of this task queue run, as many as"),
        (facts(running=4, running_max=5), Cause.BUSY_WORKERS, "2 workers poll here"),
        (
            facts(
                partitions={0: PartitionFacts(backlog=3, loaded=3, polls=1)},
                running=4,
                key_running_max=2,
                keys_at_limit=["a", "b"],
            ),
            Cause.RUNNING_LIMIT,
            "The fairness keys a, b run 2 activities each",
        ),
        (facts(), Cause.BUSY_WORKERS, "2 workers poll here, and all their slots are in use"),
        (facts(pollers=1), Cause.BUSY_WORKERS, "1 worker polls here, and all its slots are in use"),
        (facts(polled_s_ago=103.0), Cause.SILENT_WORKERS, "The last poll was 1m 43s ago: the workers have stopped, or"),
        (facts(partitions={0: PartitionFacts(backlog=3, loaded=3, polls=1)}), Cause.NOTHING, "being matched"),
    ],
)
def test_the_cause_is_named_with_the_evidence(given: QueueFacts, cause: Cause, said: str) -> None:
    held = held_back(given)
    assert held.cause is cause
    assert said in held.sentence
    assert bool(held.advice) == (cause is not Cause.NOTHING)


def test_without_a_limit_the_rate_is_infinite() -> None:
    assert facts().rate_per_s == inf
