"""Made-up partition descriptions for tests of the output."""

from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import BacklogReport, DescribeResponse, KeyInfo

CONFIG = PartitionConfig(version=3, read=4, write=2)


def described(number: int, *, tasks: int = 0, keys: list[KeyInfo] | None = None) -> DescribeResponse:
    """A partition's description."""
    return DescribeResponse(
        partition=number,
        host="10.0.0.1:7240",
        config=CONFIG,
        report=BacklogReport(partition=number, tasks=tasks, age_s=1.0, adds_per_s=2.0, wait_s=0.1),
        dispatches_per_s=1.0,
        polls_waiting=0,
        tasks_loaded=tasks,
        range_id=5,
        pollers=[],
        priorities=[],
        scaler_adds_per_s=2.0,
        rate_limit_per_s=100.0,
        keys=keys or [],
    )
