"""Errors that the matching service returns to its clients."""

from fairlead.core.errors import FixRequest, RetryElsewhere
from fairlead.core.partitions import PartitionConfig


class StaleConfig(RetryElsewhere):
    """A request was based on an old partition configuration: nothing was done. `config` is the configuration in use."""

    def __init__(self, message: str, config: PartitionConfig) -> None:
        super().__init__(message)
        self.config = config


class StickyWorkerGone(RetryElsewhere):
    """The worker of a sticky task queue is not there: the task was not added.

    A retry does not help: the task belongs on the normal task queue.
    """


class ScalerIsOn(FixRequest):
    """The number of partitions can't be changed by hand while the adaptive scaler is on."""


class NotARoot(FixRequest):
    """The request is only for the root, partition 0 of a normal task queue."""
