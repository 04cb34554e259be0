"""Every cause for which a workflow is stuck, from the facts that lead to it, with the sentence that names it."""

import pytest

from fairlead.console.diagnosis import diagnose
from fairlead.console.findings import CALM, Cause
from fairlead.console.stuck_facts import Facts, NexusFacts, PartitionFacts, Poller, QueueFacts, TaskFacts

NOW_S = 10_000.0
WORKER = Poller("worker-1", NOW_S - 5)
GONE = Poller("worker-0", NOW_S - 600)
OLD = Poller("worker-2", NOW_S - 5, "orders.1")


def queue(**given: object) -> QueueFacts:
    values = {"name": "orders", "type": "activity", "pollers": [WORKER], "polls": 1, **given}
    return QueueFacts(**values)  # type: ignore[arg-type]


def activity(**given: object) -> Facts:
    values = {
        "is_activity": True,
        "id": "1",
        "name": "pack",
        "state": "scheduled",
        "since_s": NOW_S - 60,
        "queue": queue(),
        **given,
    }
    return Facts(now_s=NOW_S, status="Running", tasks=[TaskFacts(**values)])  # type: ignore[arg-type]


def workflow_task(**given: object) -> Facts:
    values = {
        "is_activity": False,
        "name": "Order",
        "state": "scheduled",
        "since_s": NOW_S - 60,
        "queue": queue(type="workflow"),
        **given,
    }
    return Facts(now_s=NOW_S, status="Running", tasks=[TaskFacts(**values)])  # type: ignore[arg-type]


def nothing(**given: object) -> Facts:
    return Facts(now_s=NOW_S, status="Running", **given)  # type: ignore[arg-type]


CASES = [
    (Cause.CLOSED, Facts(now_s=NOW_S, status="Completed", is_open=False), "it is closed (Completed)"),
    (
        Cause.ACTIVITY_NOT_PENDING,
        nothing(missing_activity="99", pause_reason="an incident", timers={"a": NOW_S + 90}),
        "The workflow has no pending activity 99: it has ended, or there was none.",
    ),
    (
        Cause.PAUSED,
        nothing(pause_reason="an incident", paused_by="ada", paused_s=NOW_S - 10),
        "The workflow is paused by ada: an incident.",
    ),
    (Cause.NO_WORKER, activity(queue=queue(pollers=[], polls=0)), "no worker polls it for activities."),
    (Cause.NO_WORKER, workflow_task(queue=queue(pollers=[GONE], polls=0)), "the last one was worker-0"),
    (
        Cause.NO_WORKER_OF_VERSION,
        workflow_task(version="orders.2", queue=queue(pollers=[OLD])),
        "for a worker of version orders.2, and there is none: those that poll have orders.1.",
    ),
    (
        Cause.NO_WORKER_OF_VERSION,
        activity(version="orders.2", queue=queue(pollers=[], polls=0)),
        "no worker polls at all",
    ),
    (
        Cause.NO_WORKER_OF_TYPE,
        activity(attempt=3, failure="Activity function pack for workflow is not registered on this worker"),
        "The workers of task queue orders don't know the type pack",
    ),
    (
        Cause.TASK_FAILING,
        workflow_task(attempt=7, failure="[TMPRL1100] Nondeterminism error"),
        "fails again and again (attempt 7): [TMPRL1100] Nondeterminism error.",
    ),
    (Cause.TASK_FAILING, workflow_task(attempt=2), "by a timeout: its worker does not answer."),
    (
        Cause.STICKY_GONE,
        workflow_task(is_sticky=True, queue=queue(pollers=[GONE], polls=0)),
        "the worker that has the workflow in its cache",
    ),
    (
        Cause.RATE_LIMIT,
        activity(queue=queue(rate_per_s=10.0, dispatches_per_s=9.9, backlog=50, rate_source="set by a setting")),
        "whose rate limit of 10 tasks per second is reached.",
    ),
    (
        Cause.RATE_LIMIT,
        activity(queue=queue(rate_per_s=0.0, backlog=50, rate_source="set by a setting")),
        "whose rate limit of 0 tasks per second is reached.",
    ),
    (
        Cause.KEY_LIMIT,
        activity(queue=queue(key="tenant", key_rate_per_s=2.0, key_weight=3.0, key_waiting=40)),
        "fairness key 'tenant' may have 6 tasks per second: 40 tasks of it wait.",
    ),
    (
        Cause.RUNNING_LIMIT,
        activity(queue=queue(running=2, running_max=2, backlog=1)),
        "of which 2 activities run now: as many as matching.taskQueueConcurrency allows.",
    ),
    (
        Cause.KEY_RUNNING_LIMIT,
        activity(queue=queue(key="tenant", running=3, running_max=9, key_running=1, key_running_max=1)),
        "and 1 activity of fairness key 'tenant' runs now: as many as matching.fairnessKeyConcurrency allows.",
    ),
    (
        Cause.DISPATCHING,
        activity(queue=queue(running=1, running_max=2, key_running=1, key_running_max=2)),
        "it should be dispatched at once.",
    ),
    (
        Cause.PARTITION_WITHOUT_POLLS,
        activity(
            queue=queue(
                partitions=[PartitionFacts(0, "a", 0, 2), PartitionFacts(3, "b", 9, 0)], partition=3, position=2
            )
        ),
        "at position 2, in a partition without a waiting poll (3), while partition 0 has some.",
    ),
    (
        Cause.WORKERS_BUSY,
        activity(queue=queue(polls=0, backlog=12, oldest_s=90.0, position=4, partition=0)),
        "behind 3 tasks: 1 worker serves it, but none has a free slot; 12 tasks wait, the oldest for 1m 30s.",
    ),
    (Cause.ACTIVITY_PAUSED, activity(state="paused"), "Activity pack is paused"),
    (
        Cause.BACKING_OFF,
        activity(attempt=3, attempts_max=5, next_s=NOW_S + 30, failure="out of boxes"),
        "failed, and waits for attempt 3 of 5 in 30 s. It failed with: out of boxes.",
    ),
    (
        Cause.NO_HEARTBEAT,
        activity(
            state="started",
            started_s=NOW_S - 60,
            heartbeat_s=NOW_S - 50,
            heartbeat_timeout_s=60.0,
            worker="worker-1",
        ),
        "was started on worker-1, but sends no heartbeat: the last sign of life was 50 s ago",
    ),
    (Cause.TASK_HANGS, workflow_task(state="started", started_s=NOW_S - 8), "has had the workflow task for 8 s"),
    (Cause.RUNNING, activity(state="started", started_s=NOW_S - 60), "has been running for 1m"),
    (
        Cause.NEXUS,
        nothing(nexus=[NexusFacts("s/o at endpoint e", "blocked", 1, NOW_S, None, "The circuit breaker is open", "")]),
        "Nexus operation s/o at endpoint e is blocked: The circuit breaker is open.",
    ),
    (Cause.QUEUE_UNKNOWN, activity(queue=queue(problem="Request unauthorized.")), "can't be read: Request"),
    (Cause.DISPATCHING, activity(), "it should be dispatched at once."),
    (Cause.DISPATCHING, workflow_task(state="started", started_s=NOW_S - 1), "has not answered"),
    (
        Cause.WAITS_FOR_TIMER,
        nothing(timers={"b": NOW_S + 7_200, "a": NOW_S + 90}),
        "waits for its timer a, which fires in 1m 30s; 1 other timer fires later.",
    ),
    (Cause.WAITS_FOR_CHILD, nothing(children=[("child-1", "Shipment")]), "waits for 1 child: child-1 (Shipment)."),
    (Cause.WAITS_FOR_SIGNAL, nothing(), "waits for a signal or an update"),
]


@pytest.mark.parametrize(("cause", "facts", "words"), CASES, ids=[f"{one[0]}-{one[2][:20]}" for one in CASES])
def test_the_facts_lead_to_the_cause_and_to_a_plain_sentence(cause: Cause, facts: Facts, words: str) -> None:
    first = diagnose(facts)[0]
    assert first.cause is cause
    assert words in first.sentence
    assert first.advice
    assert first.is_calm is (cause in CALM)


def test_every_cause_has_a_case() -> None:
    assert {cause for cause, _, _ in CASES} == set(Cause)


def test_a_reason_that_needs_action_comes_before_one_that_does_not() -> None:
    running = activity(state="started", started_s=NOW_S - 60).tasks
    alone = activity(queue=queue(pollers=[], polls=0)).tasks
    both = Facts(now_s=NOW_S, status="Running", tasks=[*running, *alone])
    assert [one.cause for one in diagnose(both)] == [Cause.NO_WORKER, Cause.RUNNING]


def test_activities_that_wait_for_the_same_reason_share_a_finding() -> None:
    def of(number: int, key: str, **limit: object) -> TaskFacts:
        place = queue(**limit, key=key, partition=1, position=number)
        (task,) = activity(id=f"a-{number}", queue=place).tasks
        return task

    places = [(3, "acme"), (1, "acme"), (2, "globex"), (4, "acme")]
    tasks = [of(*place, key_rate_per_s=2.0, key_waiting=3) for place in places]
    found = diagnose(Facts(now_s=NOW_S, status="Running", tasks=tasks))
    assert [(one.activity, one.fairness_key, one.position) for one in found] == [
        ("a-1", "acme", 1),
        ("a-2", "globex", 2),
    ]
    assert [(other.id, other.partition, other.position) for other in found[0].others] == [("a-3", 1, 3), ("a-4", 1, 4)]
    # The task queue's own limit is the same reason for all keys.
    tasks = [of(*place, rate_per_s=1.0, dispatches_per_s=1.0) for place in places]
    (one,) = diagnose(Facts(now_s=NOW_S, status="Running", tasks=tasks))
    assert [(other.id, other.fairness_key) for other in one.others] == [
        ("a-2", "globex"),
        ("a-3", "acme"),
        ("a-4", "acme"),
    ]
    # Each failure is shown on its own.
    failing = [task for number in "bc" for task in activity(id=number, attempt=2, next_s=NOW_S + 9).tasks]
    assert len(diagnose(Facts(now_s=NOW_S, status="Running", tasks=failing))) == 2


def test_the_evidence_names_the_queue_its_limits_and_the_position() -> None:
    found = diagnose(activity(queue=queue(polls=0, partition=3, position=17, key="tenant", key_waiting=4)))[0]
    evidence = dict(found.evidence)
    assert evidence["Partition"] == "3"
    assert evidence["Position in the fair backlog"] == "17"
    assert evidence["Rate limit"] == "none"
    assert evidence["Fairness key"] == "tenant: weight 1, no limit, 4 tasks waiting"
    assert (found.queue, found.queue_type, found.activity) == ("orders", "activity", "1")
