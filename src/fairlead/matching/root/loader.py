"""Loads the state of a task queue's root from the store, or creates it; makes the root's coordinator."""

from collections.abc import Mapping

from structlog.typing import FilteringBoundLogger

from fairlead.core.partitions import PartitionConfig
from fairlead.matching.partition.config_manager import ConfigManager, queue_id
from fairlead.matching.partition.dependencies import Dependencies
from fairlead.matching.partition.describer import Describer
from fairlead.matching.root.coordinator import RootCoordinator
from fairlead.matching.root.partition_calls import PartitionCalls
from fairlead.matching.root.state import FROM_DATABASE, CountsSource, LeasedRootStore, RootState, decode_state
from fairlead.matching.root.target_counts import CountsGoal
from fairlead.settings import partition_counts
from fairlead.settings.dynamic import matching
from fairlead.storage.tasks import TaskStore

# Shared by the task queues that have no partitions outside the configuration, which are most of them.
NOTHING_OUTSIDE: Mapping[int, bool] = {}


async def load_root(
    stored: PartitionConfig | None, *, store: TaskStore, dependencies: Dependencies, configs: ConfigManager
) -> tuple[RootState, Mapping[int, bool]]:
    """Load the root's state and use it; `stored` is the configuration that came with the lease.

    Also returns, for each stored partition that the configuration does not read, whether it holds tasks.
    """
    queue = queue_id(dependencies.partition_id)
    root_store = LeasedRootStore(store, queue, dependencies.queue.backlog.lease)
    partitions = await store.list_partitions(queue)
    if stored is None:
        counts = partition_counts(dependencies.settings, dependencies.scope)
        is_settings = not dependencies.get(matching.ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE)
        # If partitions are stored, the root's row was lost. The time in milliseconds is above all versions that were
        # counted from 1, so no partition or client has this version with other counts.
        version = 1 + (int(dependencies.clock() * 1000) if partitions else 0)
        config = PartitionConfig(version=version, read=counts.read, write=counts.write)
        state = RootState(config, source=CountsSource(is_settings=True) if is_settings else FROM_DATABASE)
        # Save before any other partition gets the configuration: a crash must not undo it.
        await root_store.create(state)
        # The owners of these partitions may still accept tasks.
        partitions = dict.fromkeys(partitions, True)
    else:
        state = decode_state(stored, await store.load_rules(queue))
    configs.begin(state.config, state.rules)
    outside = {number: has_tasks for number, has_tasks in partitions.items() if number >= state.config.read}
    return state, outside or NOTHING_OUTSIDE


def has_work(state: RootState, outside: Mapping[int, bool], dependencies: Dependencies) -> bool:
    """Whether a root has work apart from requests: the scaler, other partitions, or partition counts to reach."""
    goal = CountsGoal(dependencies.settings, dependencies.scope)
    return (
        state.config.read > 1
        or any(outside.values())
        or goal.is_scaler_on(state.source)
        or not goal.is_reached(state.config, state.source)
    )


def new_coordinator(
    state: RootState,
    *,
    outside: Mapping[int, bool],
    store: TaskStore,
    dependencies: Dependencies,
    configs: ConfigManager,
    describer: Describer,
    log: FilteringBoundLogger,
) -> RootCoordinator:
    """Create the root's coordinator without starting it; see `load_root` for `state` and `outside`."""
    calls = PartitionCalls(dependencies, describer)
    return RootCoordinator(
        state=state,
        store=LeasedRootStore(store, queue_id(dependencies.partition_id), dependencies.queue.backlog.lease),
        outside=outside,
        ask=calls.describe,
        push=calls.push,
        on_change=configs.use,
        settings=dependencies.settings,
        scope=dependencies.scope,
        clock=dependencies.clock,
        counts=dependencies.counts,
        log=log,
    )
