"""Scaling decisions that the server sends to workers with autoscaled pollers."""

from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.frontend.handlers.poll_scaling import MORE_PER_S_MAX, TASK_QUEUES_MAX, PollScaling
from fairlead.matching.messages import BacklogReport

QUEUE = TaskQueueId("namespace", "queue", TaskType.ACTIVITY)
BACKLOG = BacklogReport(partition=0, tasks=5, age_s=1.0, adds_per_s=1.0, wait_s=0.0)
FRESH = BacklogReport(partition=0, tasks=5, age_s=0.1, adds_per_s=1.0, wait_s=0.0)
EMPTY = BacklogReport(partition=0, tasks=0, age_s=0.0, adds_per_s=1.0, wait_s=0.0)


def delta(
    scaling: PollScaling,
    report: BacklogReport,
    *,
    waited_s: float = 0.0,
    now_s: float = 100.0,
    queue: TaskQueueId = QUEUE,
) -> int:
    decision = scaling.decide(queue, report, waited_s=waited_s, now_s=now_s)
    return 0 if decision is None else decision.poll_request_delta_suggestion


def test_a_poll_that_waited_long_suggests_fewer_pollers() -> None:
    scaling = PollScaling()
    assert delta(scaling, BACKLOG, waited_s=1.0) == -1
    assert delta(scaling, EMPTY, waited_s=0.9) == 0


def test_an_old_backlog_suggests_more_pollers() -> None:
    scaling = PollScaling()
    assert delta(scaling, BACKLOG) == 1
    assert delta(scaling, FRESH) == 0
    assert delta(scaling, EMPTY) == 0


def test_more_pollers_are_suggested_at_most_a_few_times_a_second() -> None:
    scaling = PollScaling()
    assert sum(delta(scaling, BACKLOG) for _ in range(3 * MORE_PER_S_MAX)) == MORE_PER_S_MAX
    assert delta(scaling, BACKLOG, queue=QUEUE._replace(name="another")) == 1
    assert delta(scaling, BACKLOG, now_s=101.0) == 1


def test_the_number_of_task_queues_with_counts_is_bounded() -> None:
    scaling = PollScaling()
    for number in range(TASK_QUEUES_MAX + 5):
        delta(scaling, BACKLOG, queue=QUEUE._replace(name=str(number)))
    assert len(scaling._suggested) == TASK_QUEUES_MAX
