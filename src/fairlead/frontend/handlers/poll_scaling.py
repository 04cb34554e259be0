"""Suggestions to workers that scale their pollers: one more if tasks wait, one less if polls wait."""

from collections import OrderedDict

from temporalio.api.taskqueue.v1 import PollerScalingDecision

from fairlead.core.partitions import TaskQueueId
from fairlead.matching.messages import BacklogReport

# Wait of a poll, in seconds, from which its worker has too many polls.
POLL_WAIT_S_MAX = 1.0
# Age of the oldest backlogged task, in seconds, from which a worker has too few polls.
BACKLOG_AGE_S_MAX = 0.2
# Maximum number of suggestions for more polls per task queue and second, so that workers do not overshoot.
MORE_PER_S_MAX = 10
# Maximum number of task queues whose suggestions are counted; the least recently used are dropped.
TASK_QUEUES_MAX = 10_000


class PollScaling:
    """Decides on suggestions; the rules and figures are those of Temporal's server."""

    def __init__(self) -> None:
        # By task queue: the last second in which more polls were suggested, and the number of these suggestions.
        self._suggested: OrderedDict[TaskQueueId, tuple[int, int]] = OrderedDict()

    def decide(
        self, task_queue: TaskQueueId, report: BacklogReport, *, waited_s: float, now_s: float
    ) -> PollerScalingDecision | None:
        """The suggestion for a poll that got a task after `waited_s`; None for no change."""
        if waited_s >= POLL_WAIT_S_MAX:
            return PollerScalingDecision(poll_request_delta_suggestion=-1)
        if not report.tasks or report.age_s < BACKLOG_AGE_S_MAX or not self._may_suggest_more(task_queue, now_s):
            return None
        return PollerScalingDecision(poll_request_delta_suggestion=1)

    def _may_suggest_more(self, task_queue: TaskQueueId, now_s: float) -> bool:
        second, count = self._suggested.get(task_queue, (0, 0))
        if second != int(now_s):
            count = 0
        if count >= MORE_PER_S_MAX:
            return False
        self._suggested[task_queue] = int(now_s), count + 1
        self._suggested.move_to_end(task_queue)
        if len(self._suggested) > TASK_QUEUES_MAX:
            self._suggested.popitem(last=False)
        return True
