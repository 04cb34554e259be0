"""The plan of a load."""

import math
from dataclasses import dataclass, field, replace

from fairlead.bench.keys import KeyPlan
from fairlead.bench.payload import PAYLOAD_BYTES_MIN
from fairlead.bench.schedule import Phase

# Maximum number of tasks: each takes one byte of memory, and one process can't send as many in an hour.
TASKS_MAX = 50_000_000
PRODUCERS_MAX = 10_000
POLLERS_MAX = 10_000
POLL_TIMEOUT_S = 60.0
ADD_TIMEOUT_S = 10.0
# Number of consecutive long polls without a task after which the load ends. One is not enough: a task may wait at a
# partition without polls until polls elsewhere time out and a new poll selects that partition by chance.
DRAIN_POLLS = 3


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """An open loop has `phases`: tasks are due at set times, and at most `producers` are being added at once.

    A closed loop has no phases: each producer adds its next task when the previous add has returned. The load ends
    after `tasks` tasks or after `duration_s` seconds; one of both is given.
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
    # Start polling only after all tasks were added.
    is_backlog_first: bool = False
    poll_timeout_s: float = POLL_TIMEOUT_S
    add_timeout_s: float = ADD_TIMEOUT_S
    # Seconds without a received task after which the load ends although tasks are outstanding.
    drain_timeout_s: float = DRAIN_POLLS * POLL_TIMEOUT_S
    # Maximum duration of the load in seconds.
    limit_s: float = math.inf

    @property
    def is_open_loop(self) -> bool:
        """Whether tasks are due at set times."""
        return bool(self.phases)

    def faster(self, speed: float) -> "LoadPlan":
        """Return the same rates over a shorter time, with proportionally fewer tasks."""
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
    """Return the number of tasks for a shorter time, at least one."""
    return max(1, round(tasks / speed))
