"""What a load consists of, before anything is sent."""

import math
from dataclasses import dataclass, field, replace

from fairlead.cli.bench.keys import KeyPlan
from fairlead.cli.bench.payload import PAYLOAD_BYTES_MIN
from fairlead.cli.bench.schedule import Phase

# What a run remembers of each task is a byte; this many is far more than one process can send in an hour.
TASKS_MAX = 50_000_000
PRODUCERS_MAX = 10_000
POLLERS_MAX = 10_000
POLL_TIMEOUT_S = 60.0
ADD_TIMEOUT_S = 10.0
# A task may wait at a partition where nobody polls until the polls elsewhere have run out, and some come there by
# chance. After this many long polls without any task, no more are waited for.
DRAIN_POLLS = 3


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """An open loop has `phases`: tasks are due at their times, and at most `producers` are being added at once.

    A closed loop has none: each of the producers adds its next task when the last was answered. The load ends after
    `tasks` tasks or `duration_s` seconds, whichever is given.
    """

    phases: tuple[Phase, ...] = ()
    producers: int = 100
    tasks: int | None = None
    duration_s: float | None = None
    pollers: int = 8
    work_s: float = 0.0
    payload_bytes: int = PAYLOAD_BYTES_MIN
    keys: KeyPlan = field(default_factory=KeyPlan)
    priority: int = 3
    # Nobody polls until all tasks were added.
    is_backlog_first: bool = False
    poll_timeout_s: float = POLL_TIMEOUT_S
    add_timeout_s: float = ADD_TIMEOUT_S
    # With tasks outstanding, so long without receiving any: the load has ended.
    drain_timeout_s: float = DRAIN_POLLS * POLL_TIMEOUT_S
    # So long after its start the load has ended in any case.
    limit_s: float = math.inf

    @property
    def is_open_loop(self) -> bool:
        """Whether tasks are due at times of their own."""
        return bool(self.phases)

    def faster(self, speed: float) -> "LoadPlan":
        """The same rates over a shorter time, with as many fewer tasks."""
        return replace(
            self,
            phases=tuple(
                phase._replace(duration_s=None if phase.duration_s is None else phase.duration_s / speed)
                for phase in self.phases
            ),
            tasks=None if self.tasks is None else fewer_tasks(self.tasks, speed),
            duration_s=None if self.duration_s is None else self.duration_s / speed,
        )


def fewer_tasks(tasks: int, speed: float) -> int:
    """As many as there are in a shorter time, and at least one."""
    return max(1, round(tasks / speed))
