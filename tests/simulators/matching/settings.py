"""The settings of a simulated cluster: small sizes and short times, so that much happens in a short run."""

from collections.abc import Mapping
from random import Random

from fairlead.settings import DynamicSettings, Plain


class ChangingSettings(DynamicSettings):
    """Settings that a test changes with a call."""

    def change(self, overrides: Mapping[str, Plain]) -> None:
        """Replace the overrides, and notify the listeners."""
        other = DynamicSettings(overrides=overrides)
        self._overrides = other._overrides
        self._replace(other._rules)


def draw_settings(random: Random, *, is_scaler_on: bool) -> dict[str, Plain]:
    """The settings at the start of a run, drawn from the seed."""
    batch_size = random.choice([2, 4, 10, 40])
    partitions = random.choice([1, 1, 2, 4])
    return {
        "matching.numTasklistReadPartitions": partitions,
        "matching.numTasklistWritePartitions": partitions,
        "matching.partitionConfigCheckInterval": "1s",
        "matching.enableAdaptiveScaler": is_scaler_on,
        "matching.partitionUpscaleRPS": 8.0,
        "matching.partitionDownscaleFactor": 0.6,
        "matching.partitionUpscaleSustainedDuration": "1s",
        "matching.partitionDownscaleSustainedDuration": "2s",
        "matching.adaptiveScalerUpdateInterval": "500ms",
        "matching.qpsTrackerInterval": "2s",
        "matching.taskListMaximumWritePartitions": 6,
        "matching.forwarderMaxChildrenPerNode": random.choice([1, 2, 20]),
        "matching.forwarderMaxOutstandingPolls": random.choice([0, 1, 1, 3]),
        "matching.forwarderMaxOutstandingTasks": random.choice([0, 1, 1, 3]),
        "matching.forwarderMaxRatePerSecond": random.choice([10.0, 1000.0]),
        "matching.longPollExpirationInterval": "6s",
        "matching.maxTaskQueueIdleTime": random.choice(["3s", "300s"]),
        "matching.membershipUnloadDelay": random.choice(["0s", "500ms"]),
        "matching.getTasksBatchSize": batch_size,
        "matching.getTasksReloadAt": random.randrange(batch_size),
        "matching.maxTaskBatchSize": random.choice([1, 3, 100]),
        "matching.maxTaskDeleteBatchSize": random.choice([1, 5, 100]),
        "matching.taskDeleteInterval": random.choice(["500ms", "3s"]),
        "matching.updateAckInterval": random.choice(["1s", "60s"]),
        "matching.fairnessCounterKeysMax": random.choice([2, 100]),
        "matching.spreadRoutingBatchSize": random.choice([0, 0, 2]),
        "system.tasklistLoadBalancerStrategy": random.choice(["random", "round-robin", "weighted"]),
    }


def draw_source(random: Random) -> dict[str, Plain]:
    """A change of the source of the partition counts, and of the counts in the settings."""
    read = random.choice([1, 2, 4, 6])
    return {
        "matching.enableGetNumberOfPartitionsFromCache": random.random() < 0.5,
        "matching.numTasklistReadPartitions": read,
        "matching.numTasklistWritePartitions": random.randint(1, read),
    }


def draw_change(random: Random) -> dict[str, Plain]:
    """A change of settings during the run."""
    changes: list[dict[str, Plain]] = [
        {"matching.forwarderMaxOutstandingPolls": random.choice([0, 1, 3])},
        {"matching.forwarderMaxOutstandingTasks": random.choice([0, 1, 3])},
        {"matching.forwarderMaxOutstandingPollsDown": random.choice([0, 1, 1000])},
        {"matching.overrideTaskListRps": random.choice([0.0, 50.0])},
        {"matching.fairnessKeyRps": random.choice([0.0, 20.0])},
        {"matching.spreadRoutingBatchSize": random.choice([0, 2])},
        {"matching.maxTaskQueueIdleTime": random.choice(["1s", "3s", "300s"])},
    ]
    return random.choice(changes)
