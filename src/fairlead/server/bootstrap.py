"""What a store holds from its first start on: the number of shards, and the namespaces that are configured."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

import msgspec
from temporalio.api.enums.v1 import IndexedValueType

from fairlead.core.errors import FixRequest
from fairlead.history.namespaces import SYSTEM_SEARCH_ATTRIBUTES, Namespace, Namespaces
from fairlead.settings.static import NamespaceConfig, SearchAttributeType, StaticConfig
from fairlead.storage.history_contract import HistoryStore, MetadataConflict, StoredMetadata

SHARDS_KEY: Final = "history.shards"
CLUSTER_KEY: Final = "cluster/versions"
SECOND_NS: Final = 1_000_000_000

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
    """A store that can be asked for values of the whole cluster."""

    async def read_metadata(self, key: str) -> StoredMetadata | None:
        """One of them."""
        ...


class ShardsFixed(FixRequest):
    """A store is divided into another number of shards than is configured."""


class ClusterFixed(FixRequest):
    """A store is of another cluster than is configured."""


class CannotBootstrap(FixRequest):
    """A namespace is not as it is configured, and can't be made so."""


async def fix_shards(store: HistoryStore, config: StaticConfig) -> int:
    """How many shards the store has: what the first start has fixed, for a workflow's shard never changes."""
    stored = await store.read_metadata(SHARDS_KEY)
    if stored is None:
        try:
            await store.write_metadata(SHARDS_KEY, b"%d" % config.shards_at_first, expected_version=0)
        except MetadataConflict as conflict:
            # Another host was faster, with a configuration that may be another one.
            stored = conflict.present
    fixed = config.shards_at_first if stored is None else _number(stored)
    if config.history_shards is not None and config.history_shards != fixed:
        raise ShardsFixed(
            f"history.shards is {config.history_shards}, but this store was begun with {fixed}, which can't be changed "
            f"any more: write history: {{shards: {fixed}}}, or leave it out"
        )
    return fixed


async def fix_cluster(store: HistoryStore, config: StaticConfig) -> None:
    """Refuse to go on with a store as another cluster: its events are at versions that would be somebody else's."""
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
        raise ClusterFixed(
            f"this store is of cluster {name}, which can't be changed any more: write "
            f"cluster: {{name: {name}, initialVersion: {initial}, increment: {increment}}}"
        )


async def read_shards(store: ReadsMetadata) -> int | None:
    """How many shards the store has; None where no server has been started with it yet."""
    stored = await store.read_metadata(SHARDS_KEY)
    return None if stored is None else _number(stored)


async def ensure_namespaces(
    namespaces: Namespaces, wanted: Iterable[NamespaceConfig], *, new_id: Callable[[], str], now_ns: int
) -> None:
    """Make the namespaces that are not there, and add the search attributes that are missing; nothing else changes."""
    for config in wanted:
        attributes = {name: int(_TYPES[kind]) for name, kind in config.search_attributes.items()}
        taken = sorted(attributes.keys() & SYSTEM_SEARCH_ATTRIBUTES.keys())
        if taken:
            raise CannotBootstrap(f"search attribute {taken[0]} is there in every namespace: leave it out")
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
