"""The scenarios of Cadence's matching simulation, as data.

The defaults are: 4 hosts, 4 read and 4 write partitions, one task and one poll forwarded at a time, 10 forwarded tasks
per second, 20 children per node, and waits of 10 ms before forwarding; 2 generators with 80 tasks per second together
until 3,000 were sent; 8 pollers that work 1 ms on each task; partitions chosen at random. Tasks not received after
three minutes are left behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fairlead.bench.plan import DRAIN_POLLS, POLL_TIMEOUT_S, LoadPlan, fewer_tasks
from fairlead.bench.schedule import Phase, peak_rate_per_s
from fairlead.core.balancing import Strategy
from fairlead.core.errors import FixRequest
from fairlead.core.scaling import partitions_needed
from fairlead.settings import Plain


class UnknownScenario(FixRequest):
    """There is no scenario of this name, or it can't be run here."""


@dataclass(frozen=True, slots=True)
class ScalerPlan:
    """The adaptive scaler of a scenario; the target load of a partition is `upscale_rps` tasks per second."""

    upscale_rps: float
    downscale_factor: float
    sustained_s: float
    interval_s: float = 1.0
    window_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario: the cluster, its settings and the load."""

    name: str
    about: str
    hosts: int = 4
    read_partitions: int = 4
    write_partitions: int = 4
    # Whether the number of partitions comes from the database instead of the settings.
    is_config_in_database: bool = False
    forwarded_tasks_max: int = 1
    forwarded_polls_max: int = 1
    forwarded_tasks_per_s: float = 10.0
    children_max: int = 20
    # Only in Fairlead: maximum number of idle polls that the root sends down to partitions with a backlog.
    sent_down_polls_max: int = 1_000
    task_wait_s: float = 0.01
    poll_wait_s: float = 0.01
    # Seconds that starting a task takes; in Cadence, the history service does this.
    start_s: float = 0.0
    strategy: Strategy = Strategy.RANDOM
    scaler: ScalerPlan | None = None
    # Tasks added before the load begins, by partition.
    backlog: Mapping[int, int] = field(default_factory=dict)
    generators: int = 2
    phases: tuple[Phase, ...] = (Phase(80.0),)
    tasks: int = 3_000
    pollers: int = 8
    work_s: float = 0.001
    poll_timeout_s: float = POLL_TIMEOUT_S
    # Seconds after which the scenario ends, even if tasks are outstanding.
    limit_s: float = 180.0

    @property
    def load(self) -> LoadPlan:
        """The load of the scenario."""
        return LoadPlan(
            phases=self.phases,
            producers=self.generators,
            tasks=self.tasks,
            pollers=self.pollers,
            work_s=self.work_s,
            poll_timeout_s=self.poll_timeout_s,
            drain_timeout_s=DRAIN_POLLS * self.poll_timeout_s,
            limit_s=self.limit_s,
        )

    @property
    def ideal_write_partitions(self) -> int | None:
        """The minimum number of partitions for the highest rate of the load; None without a scaler."""
        if self.scaler is None:
            return None
        return partitions_needed(peak_rate_per_s(self.phases), upscale_rps=self.scaler.upscale_rps)

    def settings(self) -> dict[str, Plain]:
        """Return the dynamic settings of the cluster."""
        values: dict[str, Plain] = {
            "matching.numTasklistReadPartitions": self.read_partitions,
            "matching.numTasklistWritePartitions": self.write_partitions,
            "matching.enableGetNumberOfPartitionsFromCache": self.is_config_in_database,
            "matching.forwarderMaxOutstandingTasks": self.forwarded_tasks_max,
            "matching.forwarderMaxOutstandingPolls": self.forwarded_polls_max,
            "matching.forwarderMaxRatePerSecond": self.forwarded_tasks_per_s,
            "matching.forwarderMaxChildrenPerNode": self.children_max,
            "matching.forwarderMaxOutstandingPollsDown": self.sent_down_polls_max,
            "matching.localTaskWaitTime": self.task_wait_s,
            "matching.localPollWaitTime": self.poll_wait_s,
            "system.tasklistLoadBalancerStrategy": self.strategy.value,
            "matching.enableAdaptiveScaler": self.scaler is not None,
        }
        if self.scaler is not None:
            values |= {
                "matching.partitionUpscaleRPS": self.scaler.upscale_rps,
                "matching.partitionDownscaleFactor": self.scaler.downscale_factor,
                "matching.partitionUpscaleSustainedDuration": self.scaler.sustained_s,
                "matching.partitionDownscaleSustainedDuration": self.scaler.sustained_s,
                "matching.adaptiveScalerUpdateInterval": self.scaler.interval_s,
                "matching.qpsTrackerInterval": self.scaler.window_s,
            }
        return values

    def faster(self, speed: float) -> "Scenario":
        """Return the same rates in a shorter time: fewer tasks, shorter polls, and a faster scaler."""
        return replace(
            self,
            phases=self.load.faster(speed).phases,
            tasks=fewer_tasks(self.tasks, speed),
            backlog={partition: fewer_tasks(tasks, speed) for partition, tasks in self.backlog.items()},
            poll_timeout_s=max(POLL_TIMEOUT_S_MIN, self.poll_timeout_s / speed),
            limit_s=max(LIMIT_S_MIN, self.limit_s / speed),
            scaler=None
            if self.scaler is None
            else replace(
                self.scaler,
                sustained_s=self.scaler.sustained_s / speed,
                interval_s=max(SCALER_INTERVAL_S_MIN, self.scaler.interval_s / speed),
                window_s=max(SCALER_INTERVAL_S_MIN, self.scaler.window_s / speed),
            ),
        )


# Minimum interval of the scaler in seconds that the settings allow.
SCALER_INTERVAL_S_MIN = 0.01
# Minimum poll timeout in seconds: with shorter polls, empty polls would be most of the load.
POLL_TIMEOUT_S_MIN = 1.0
# Minimum time limit of a scenario in seconds, so that a busy machine does not end it early.
LIMIT_S_MIN = 30.0

_BACKLOG = {1: 1_000, 2: 2_000}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("default", "The baseline for the other scenarios."),
        Scenario(
            "get_partition_config_from_db",
            "The number of partitions comes from the database.",
            is_config_in_database=True,
        ),
        Scenario("throughput", "One partition.", read_partitions=1, write_partitions=1),
        Scenario("more_read_partitions", "Twice as many partitions are read as written.", read_partitions=8),
        Scenario(
            "no_forwarding",
            "Nothing is forwarded, up or down.",
            forwarded_tasks_max=0,
            forwarded_polls_max=0,
            sent_down_polls_max=0,
        ),
        Scenario("no_wait_time_for_addtask", "Tasks are forwarded at once.", task_wait_s=0.0),
        Scenario("no_wait_time_for_polltask", "Polls are forwarded at once.", poll_wait_s=0.0),
        Scenario(
            "no_wait_time_for_polltask_and_addtask",
            "Tasks and polls are forwarded at once.",
            task_wait_s=0.0,
            poll_wait_s=0.0,
        ),
        Scenario(
            "round_robin_load_balancer",
            "Partitions in turn, on 8 hosts, with many generators and slow starts.",
            hosts=8,
            read_partitions=2,
            write_partitions=2,
            task_wait_s=0.0,
            poll_wait_s=0.0,
            start_s=0.013,
            strategy=Strategy.ROUND_ROBIN,
            generators=100,
            phases=(Phase(300.0),),
            tasks=30_000,
        ),
        Scenario("with_backlog", "Two partitions begin with a backlog.", backlog=_BACKLOG),
        Scenario(
            "weighted_load_balancer_with_backlog",
            "Like with_backlog, with polls sent to the partitions with a backlog.",
            backlog=_BACKLOG,
            strategy=Strategy.WEIGHTED,
        ),
        Scenario(
            "burst",
            "A high rate of tasks from the start.",
            task_wait_s=0.0,
            poll_wait_s=0.0,
            generators=10,
            phases=(Phase(500.0),),
            tasks=10_000,
        ),
        Scenario(
            "burst_adaptive",
            "Like burst, from one partition on, with the adaptive scaler.",
            read_partitions=1,
            write_partitions=1,
            is_config_in_database=True,
            scaler=ScalerPlan(upscale_rps=200.0, downscale_factor=0.75, sustained_s=5.0),
            generators=10,
            phases=(Phase(500.0),),
            tasks=10_000,
        ),
        Scenario(
            "fluctuating",
            "Few tasks, then many, then few, on one partition.",
            read_partitions=1,
            write_partitions=1,
            generators=4,
            phases=(Phase(10.0, 30.0), Phase(250.0, 15.0), Phase(10.0)),
            tasks=5_000,
        ),
        Scenario(
            "fluctuating_adaptive",
            "Like fluctuating, with the adaptive scaler.",
            read_partitions=1,
            write_partitions=1,
            is_config_in_database=True,
            scaler=ScalerPlan(upscale_rps=120.0, downscale_factor=0.7, sustained_s=3.0),
            generators=3,
            phases=(Phase(10.0, 15.0), Phase(250.0, 30.0), Phase(10.0)),
            tasks=8_000,
        ),
    )
}

_NO_GROUPS = "needs isolation groups, which Fairlead does not have"

# Cadence's scenarios that can't be run here, with the reason.
NOT_OFFERED = {
    f"zonal_isolation{variant}": _NO_GROUPS
    for variant in (
        "",
        "_few_pollers",
        "_many_pollers",
        "_single_partition",
        "_skew",
        "_skew_extreme",
        "_skew_forwarding",
    )
}


def find_scenario(name: str) -> Scenario:
    """Return the scenario of this name."""
    if name in NOT_OFFERED:
        raise UnknownScenario(f"scenario {name} is not offered: it {NOT_OFFERED[name]}")
    if name not in SCENARIOS:
        raise UnknownScenario(f"there is no scenario {name!r}: see --list-scenarios")
    return SCENARIOS[name]
