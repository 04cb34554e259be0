"""The state that the root of a task queue stores, and its encoding."""

from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from fairlead.core.partitions import PartitionConfig, PartitionCounts
from fairlead.matching.messages import NO_RULES, DispatchRules
from fairlead.matching.partition.lease import QueueLease
from fairlead.storage.tasks import LeaseLost, QueueId, TaskStore


@dataclass(frozen=True, slots=True)
class CountsSource:
    """The source of the partition counts: the dynamic settings, or the database.

    `planned` are the counts in the database while other counts are in force: because the settings are the source, or
    because the move from the settings' counts to the database's is not finished. Otherwise it is None.
    """

    is_settings: bool = False
    planned: PartitionCounts | None = None


# The source for most task queues.
FROM_DATABASE = CountsSource()


@dataclass(frozen=True, slots=True)
class RootState:
    """The partition configuration in force, the dispatch rules that calls have set, and the source of the counts."""

    config: PartitionConfig
    rules: DispatchRules = NO_RULES
    source: CountsSource = FROM_DATABASE

    def with_config(self, config: PartitionConfig, source: CountsSource | None = None) -> "RootState":
        """The same state with another configuration and, if given, another source."""
        return replace(self, config=config, source=source or self.source)


class RootStore(Protocol):
    """Saves and loads the state of one root under its lease."""

    async def save(self, state: RootState, *, before: RootState) -> None:
        """Save `state` as a whole or not at all; `before` is the state that is stored now."""
        ...

    async def load(self) -> RootState | None:
        """Read the stored state, when no earlier save can still take effect."""
        ...


class LeasedRootStore:
    """The `RootStore` of a loaded root. Each save is fenced by the root's lease."""

    def __init__(self, store: TaskStore, queue: QueueId, lease: QueueLease) -> None:
        self._store = store
        self._queue = queue
        self._lease = lease

    async def create(self, state: RootState) -> None:
        """Save the first state of a task queue."""
        await self._save(state, is_config_only=False)

    async def save(self, state: RootState, *, before: RootState) -> None:
        """See `RootStore`."""
        await self._save(state, is_config_only=(state.rules, state.source) == (before.rules, before.source))

    async def load(self) -> RootState | None:
        """See `RootStore`."""
        # After a renewal of the lease, no earlier save can take effect.
        await self._lease.renew(self._lease.range_id)
        config = await self._store.load_config(self._queue)
        return None if config is None else decode_state(config, await self._store.load_rules(self._queue))

    async def _save(self, state: RootState, *, is_config_only: bool) -> None:
        while True:
            range_id = self._lease.range_id
            try:
                if is_config_only:
                    await self._store.save_config(self._queue, range_id, state.config)
                else:
                    await self._store.save_rules(self._queue, range_id, state.config, encode_record(state))
            except LeaseLost:
                # If this host has renewed the lease meanwhile, nothing was saved: repeat the save.
                self._lease.refused(range_id)
                continue
            return


class _Record(DispatchRules, frozen=True):
    """The stored record: the rules, then the source of the counts. Rows of older releases end after the rules."""

    is_settings: bool = False
    planned: tuple[int, int] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


def encode_record(state: RootState) -> bytes:
    """Encode the state without its configuration, which is stored in separate columns."""
    rules, source = state.rules, state.source
    planned = None if source.planned is None else (source.planned.read, source.planned.write)
    return _encode(_Record(rules.version, rules.queue_rate, rules.key_rate, rules.weights, source.is_settings, planned))


def decode_state(config: PartitionConfig, record: bytes | None) -> RootState:
    """Decode the state from the stored `config` and `record`; the record is None if only a configuration was saved."""
    if record is None:
        return RootState(config)
    stored = _decode(record)
    planned = None if stored.planned is None else PartitionCounts(*stored.planned)
    return RootState(config, _rules(stored), CountsSource(stored.is_settings, planned))


def decode_rules(record: bytes | None) -> DispatchRules:
    """Decode only the rules, for partitions that are not the root."""
    return NO_RULES if record is None else _rules(_decode(record))


def _rules(stored: _Record) -> DispatchRules:
    return DispatchRules(stored.version, stored.queue_rate, stored.key_rate, stored.weights)
