"""The gauges of one loaded partition."""

from fairlead.matching.messages import QueueKind
from fairlead.matching.partition.manager import PartitionManager
from fairlead.telemetry import PartitionGauges, ScalerGauges


def partition_gauges(manager: PartitionManager) -> PartitionGauges:
    """Read the gauges of a partition, for the metrics."""
    task_queue, number = manager.partition_id
    report = manager.reports.current()
    root = manager.root
    decision = None if root is None else root.decisions.latest
    levels = manager.queue.backlog.priorities.infos()
    return PartitionGauges(
        namespace=task_queue.namespace_id,
        task_queue=task_queue.name,
        task_type=task_queue.type,
        partition=number,
        is_sticky=manager.kind is QueueKind.STICKY,
        config=manager.configs.config,
        scaler=None
        if decision is None
        else ScalerGauges(
            qps=decision.qps,
            upscale_threshold_qps=decision.upscale_threshold_qps,
            downscale_threshold_qps=decision.downscale_threshold_qps,
            target=decision.after.write,
        ),
        approximate_backlog_count=report.tasks,
        approximate_backlog_age_seconds=report.age_s,
        task_lag_per_tl=max((max(0, one.max_level[1] - one.ack_level[1]) for one in levels), default=0),
        loaded_tasks=manager.queue.tasks_loaded,
        pending_polls=manager.queue.polls_waiting,
        task_add_rate=report.adds_per_s,
        task_dispatch_rate=manager.queue.dispatches_per_s,
    )
