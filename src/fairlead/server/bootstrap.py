"""Writes to a new store at its first start: number of shards, cluster name, configured namespaces."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

import msgspec
from temporalio.api.enums.v1 import IndexedValueType

from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.api.system_attributes import SYSTEM_SEARCH_ATTRIBUTES
from fairlead.api.times import SECOND_NS
from fairlead.core.errors import FixRequest
from fairlead.settings.static.config import NamespaceConfig, SearchAttributeType, StaticConfig
from fairlead.storage.history import HistoryStore, StoredMetadata
from fairlead.storage.history_conflicts import MetadataConflict

SHARDS_KEY: Final = "history.shards"
CLUSTER_KEY: Final = "cluster/versions"

_TYPES: Final[dict[SearchAttributeType, IndexedValueType.ValueType]] = {
    SearchAttributeType.TEXT: IndexedValueType.INDEXED_VALUE_TYPE_TEXT,
    SearchAttributeType.KEYWORD: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    SearchAttributeType.INT: IndexedValueType.INDEXED_VALUE_TYPE_INT,
    SearchAttributeType.DOUBLE: IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    SearchAttributeType.BOOL: IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
    SearchAttributeType.DATETIME: IndexedValueType.INDEXED_VALUE_TYPE_DATETIME,
    SearchAttributeType.KEYWORD_LIST: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
}
_NAMES = {int(number): kind.value for kind, number in _TYPES.items()}


class ReadsMetadata(Protocol):
    """A store from which cluster-wide metadata can be read."""

    async def read_metadata(self, key: str) -> StoredMetadata | None:
        """Read one metadata value by key."""
        ...


class ShardsFixed(FixRequest):
    """The store has another number of shards than the configuration."""


class ClusterFixed(FixRequest):
    """The store belongs to another cluster than the configured one."""


class CannotBootstrap(FixRequest):
    """A namespace differs from the configuration and can't be changed to match it."""


async def fix_shards(store: HistoryStore, config: StaticConfig) -> int:
    """Number of shards of the store, fixed by its first start: a workflow's shard never changes."""
    stored = await store.read_metadata(SHARDS_KEY)
    if stored is None:
        try:
            await store.write_metadata(SHARDS_KEY, b"%d" % config.shards_at_first, expected_version=0)
        except MetadataConflict as conflict:
            # Another host stored its number first; its configuration may differ from ours.
            stored = conflict.present
    fixed = config.shards_at_first if stored is None else _number(stored)
    if config.history_shards is not None and config.history_shards != fixed:
        raise ShardsFixed(
            f"history.shards is {config.history_shards}, but this store was created with {fixed} shards, which can't "
            f"be changed: write history: {{shards: {fixed}}}, or leave it out"
        )
    return fixed


async def fix_cluster(store: HistoryStore, config: StaticConfig) -> None:
    """Raise if the store belongs to another cluster: this one must not write with the other's failover versions."""
    cluster = config.cluster
    wanted = None if cluster is None else f"{cluster.name} {cluster.initial_version} {cluster.increment}"
    stored = await store.read_metadata(CLUSTER_KEY)
    if stored is None and wanted is not None:
        try:
            await store.write_metadata(CLUSTER_KEY, wanted.encode(), expected_version=0)
        except MetadataConflict as conflict:
            stored = conflict.present
    if stored is not None and stored.payload.decode() != wanted:
        name, initial, increment = stored.payload.decode().split()
        advice = f"write cluster: {{name: {name}, initialVersion: {initial}, increment: {increment}}}"
        if config.flags:
            flags = {"--cluster-name": name, "--cluster-initial-version": initial, "--cluster-increment": increment}
            advice = "give " + " ".join(f"{flag} {value}" for flag, value in flags.items())
        raise ClusterFixed(f"this store belongs to cluster {name}, which can't be changed: {advice}")


async def read_shards(store: ReadsMetadata) -> int | None:
    """Number of shards of the store; None if no server has used the store yet."""
    stored = await store.read_metadata(SHARDS_KEY)
    return None if stored is None else _number(stored)


async def ensure_namespaces(
    namespaces: Namespaces, wanted: Iterable[NamespaceConfig], *, new_id: Callable[[], str], now_ns: int
) -> None:
    """Create missing namespaces and add missing search attributes; change nothing else."""
    for config in wanted:
        attributes = {name: int(_TYPES[kind]) for name, kind in config.search_attributes.items()}
        taken = sorted(attributes.keys() & SYSTEM_SEARCH_ATTRIBUTES.keys())
        if taken:
            raise CannotBootstrap(f"search attribute {taken[0]} exists in every namespace: leave it out")
        made = Namespace(
            id=new_id(),
            name=config.name,
            retention_ns=round(config.retention_s * SECOND_NS),
            search_attributes=attributes,
            created_ns=now_ns,
        )
        present = await namespaces.ensure(made)
        if attributes.items() - present.search_attributes.items():
            await namespaces.update(config.name, partial(_with, attributes))


def _with(attributes: dict[str, int], namespace: Namespace) -> Namespace:
    for name, kind in attributes.items():
        present = namespace.search_attributes.get(name, kind)
        if present != kind:
            raise CannotBootstrap(
                f"search attribute {name} of namespace {namespace.name} is {_NAMES.get(present, present)} already, "
                f"not {_NAMES[kind]}: leave it out, or choose another name"
            )
    return msgspec.structs.replace(namespace, search_attributes=namespace.search_attributes | attributes)


def _number(stored: StoredMetadata) -> int:
    return int(stored.payload)
