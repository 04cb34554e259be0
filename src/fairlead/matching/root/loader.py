"""Loads the root of a task queue from the store, or creates it."""

from structlog.typing import FilteringBoundLogger

from fairlead.core.partitions import PartitionConfig
from fairlead.matching.partition.config_manager import ConfigManager, queue_id
from fairlead.matching.partition.dependencies import Dependencies
from fairlead.matching.partition.describer import Describer
from fairlead.matching.root.coordinator import RootCoordinator
from fairlead.matching.root.partition_calls import PartitionCalls
from fairlead.matching.root.state import CountsSource, LeasedRootStore, RootState, decode_state
from fairlead.settings import partition_counts
from fairlead.settings.dynamic import matching
from fairlead.storage.tasks import TaskStore


async def load_root(
    stored: PartitionConfig | None,
    *,
    store: TaskStore,
    dependencies: Dependencies,
    configs: ConfigManager,
    describer: Describer,
    log: FilteringBoundLogger,
) -> RootCoordinator:
    """Return the root's coordinator, not started. `stored` is the configuration that came with the lease."""
    queue = queue_id(dependencies.partition_id)
    root_store = LeasedRootStore(store, queue, dependencies.queue.backlog.lease)
    partitions = await store.list_partitions(queue)
    if stored is None:
        counts = partition_counts(dependencies.settings, dependencies.scope)
        is_settings = not dependencies.get(matching.ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE)
        # If partitions are stored, the row was lost. The time is above each version that was counted from 1, so no
        # partition or client has this version with other counts.
        version = 1 + (int(dependencies.clock() * 1000) if partitions else 0)
        config = PartitionConfig(version=version, read=counts.read, write=counts.write)
        state = RootState(config, source=CountsSource(is_settings=is_settings))
        # Save before any other partition gets it: a crash must not undo it.
        await root_store.create(state)
        # The owners of these partitions may still take tasks.
        partitions = dict.fromkeys(partitions, True)
    else:
        state = decode_state(stored, await store.load_rules(queue))
    configs.begin(state.config, state.rules)
    calls = PartitionCalls(dependencies, describer)
    return RootCoordinator(
        state=state,
        store=root_store,
        outside={number: has_tasks for number, has_tasks in partitions.items() if number >= state.config.read},
        ask=calls.describe,
        push=calls.push,
        on_change=configs.use,
        settings=dependencies.settings,
        scope=dependencies.scope,
        clock=dependencies.clock,
        counts=dependencies.counts,
        log=log,
    )
