"""SC-15: pollers and producers report the configuration version that they use, as partitions do."""

from fairlead.core.partitions import PartitionConfig, TaskQueueId, TaskType
from fairlead.matching.client_config_metrics import ConfigUsers
from fairlead.matching.messages import NewTask
from fairlead.server import LocalCluster
from fairlead.settings import DynamicSettings
from fairlead.telemetry import Component
from tests.telemetry.scrapes import scrape, value, values

ORDERS = TaskQueueId("id-1", "orders", TaskType.ACTIVITY)
COUNTS = {"matching.numTasklistReadPartitions": 3, "matching.numTasklistWritePartitions": 2}
GAUGES = {
    "task_list_partition_config_num_read": 3,
    "task_list_partition_config_num_write": 2,
    "task_list_partition_config_version": 1,
}


async def test_pollers_producers_and_partitions_report_the_same_configuration() -> None:
    async with LocalCluster(settings=DynamicSettings(overrides=COUNTS)) as cluster:
        client = cluster.client()
        cluster.metrics.watch(client.gauges)
        assert values(scrape(cluster.metrics), "task_list_partition_config_version") == []
        for number in range(6):
            await client.add(ORDERS, NewTask(3, "", 1.0, b"%d" % number))
        series = scrape(cluster.metrics)
        assert values(series, "task_list_partition_config_version", component="poller") == []
        for _ in range(6):
            assert (await client.poll(ORDERS, "worker", timeout_s=5)).task is not None
        series = scrape(cluster.metrics)
        for name, expected in GAUGES.items():
            for component in (Component.POLLER, Component.PRODUCER):
                assert value(series, name, component=component, taskqueue="orders", partition="") == expected
            assert value(series, name, component="root", partition="0") == expected
            assert set(values(series, name, component="partition")) == {expected}


class Configs:
    """A client's partition configurations, set by the test."""

    def __init__(self) -> None:
        self.known: dict[TaskQueueId, PartitionConfig] = {}

    def peek(self, task_queue: TaskQueueId) -> PartitionConfig | None:
        return self.known.get(task_queue)


def test_evicted_configurations_are_not_reported_and_the_number_of_task_queues_is_bounded() -> None:
    configs = Configs()
    users = ConfigUsers(configs, task_queues_max=2)
    lists = [TaskQueueId("id-1", f"queue-{number}", TaskType.WORKFLOW) for number in range(4)]
    for task_queue in lists:
        configs.known[task_queue] = PartitionConfig(1, 1, 1)
        users.note_task(task_queue)
    users.note_task(lists[2])
    assert [one.task_queue for one in users.gauges()] == ["queue-2", "queue-3"]
    del configs.known[lists[2]]
    users.note_poll(lists[3])
    assert [(one.task_queue, one.component) for one in users.gauges()] == [
        ("queue-3", Component.POLLER),
        ("queue-3", Component.PRODUCER),
    ]
