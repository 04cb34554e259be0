"""The registry of clusters: those of the configuration, and those that operators added at runtime."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from fairlead.api.clusters import Clusters
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryLater, reported
from fairlead.core.versions import ClusterVersions, UnknownCluster
from fairlead.replication.allowed_addresses import is_address_allowed
from fairlead.replication.messages import ClusterInfo
from fairlead.replication.remote import Remote
from fairlead.settings.static.config import ClusterConfig
from fairlead.storage.history import HistoryStore, StoredMetadata
from fairlead.storage.history_conflicts import MetadataConflict
from fairlead.telemetry import get_log

PREFIX = "clusters/"
CLUSTERS_MAX = 64
REFRESH_S = 1.0
# Seconds that a cluster may take to answer Info.
INFO_S_MAX = 5.0
WRITE_ATTEMPTS_MAX = 5

_log = get_log("replication.clusters")


class ClusterRejected(FixRequest):
    """A cluster can't be added, changed or removed."""


class ClusterUnreachable(RetryLater):
    """No cluster responds at the given address."""


class NotConnected(RetryLater):
    """A cluster has not confirmed its identity yet, or its connection is disabled."""


class NotThatCluster(GiveUp):
    """The address of a cluster belongs to another one, or to one with other failover versions than configured here."""


class UnreadableCluster(GiveUp):
    """The stored record of a cluster can't be decoded."""


class KnownCluster(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A cluster as this one knows it, and as it is stored. Fields are added at the end only, with a default."""

    name: str
    address: str
    initial_version: int
    cluster_id: str = ""
    shards: int = 0
    # Whether this cluster connects to that cluster at all, and whether it replicates runs and namespaces with it.
    is_connected: bool = True
    is_replicated: bool = True


class ClosableRemote(Remote, Protocol):
    """Another cluster, and the connection to it."""

    async def close(self) -> None:
        """Close the connection."""
        ...


Connect = Callable[[str], ClosableRemote]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KnownCluster).decode


class ClusterRegistry:
    """Knows all clusters, keeps `clusters` up to date, and owns the connections to the others.

    Nothing is exchanged with a cluster before it has confirmed its identity: a cluster mistaken for another one would
    write at versions that it does not own.
    """

    def __init__(
        self,
        store: HistoryStore,
        config: ClusterConfig,
        *,
        connect: Connect,
        refresh_s: float = REFRESH_S,
    ) -> None:
        """`connect` makes the connection to the frontend at an address."""
        self._store = store
        self._config = config
        self._connect = connect
        self._refresh_s = refresh_s
        self._configured = {
            name: KnownCluster(name=name, address=remote.address, initial_version=remote.initial_version)
            for name, remote in config.remotes.items()
        }
        self._known: dict[str, KnownCluster] = dict(self._configured)
        # Stored clusters whose address is not allowed (any more).
        self._forbidden: frozenset[str] = frozenset()
        self._connections: dict[str, tuple[str, ClosableRemote]] = {}
        self._infos: dict[str, ClusterInfo] = {}
        self._wrong: dict[str, NotThatCluster] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self.clusters = Clusters(config.name, config.versions, self._configured)

    async def open(self) -> None:
        """Read all clusters, and refresh them in the background."""
        await self.refresh()
        self._running = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        """Close all connections."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None
        for name in list(self._connections):
            self._disconnect(name)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def remotes(self) -> list[KnownCluster]:
        """All other clusters, by name, with their reported ids and shard counts."""
        return [self._described(self._known[name]) for name in sorted(self._known)]

    def address(self, name: str) -> str:
        """The frontend address of another cluster."""
        cluster = self._cluster(name)
        self._check_allowed(cluster)
        return cluster.address

    def remote(self, name: str) -> Remote:
        """Another cluster, if its identity is confirmed."""
        cluster = self._cluster(name)
        if name in self._wrong:
            raise self._wrong[name]
        self._check_allowed(cluster)
        if not cluster.is_connected or name not in self._infos:
            raise NotConnected(
                f"cluster {name!r} at {cluster.address} "
                + (
                    "has not responded yet: check that it is running"
                    if cluster.is_connected
                    else "is disabled: enable its connection"
                )
            )
        return self._connection(cluster)

    @property
    def config(self) -> ClusterConfig:
        """The configuration of this cluster."""
        return self._config

    async def add(self, address: str, *, is_connected: bool, is_replicated: bool) -> KnownCluster:
        """Add the cluster at `address`, or change it; the cluster itself reports its name and version."""
        if not is_address_allowed(address, self._config.allowed_addresses):
            raise ClusterRejected(_not_allowed(f"address {address}"))
        trial = self._connect(address)
        try:
            async with asyncio.timeout(INFO_S_MAX):
                info = await trial.info()
        except (FairleadError, TimeoutError) as failure:
            raise self._unreachable(address, str(failure) or f"no response within {INFO_S_MAX:g} s") from None
        finally:
            await trial.close()
        self._check_addable(info)
        added = KnownCluster(
            name=info.name,
            address=address,
            initial_version=info.initial_version,
            cluster_id=info.cluster_id,
            shards=info.shards,
            is_connected=is_connected,
            is_replicated=is_replicated,
        )
        await self._write(info.name, lambda stored: self._store.write_metadata(*_row(added), expected_version=stored))
        self._infos[info.name] = info
        await self.refresh()
        return added

    async def remove(self, name: str) -> None:
        """Remove a cluster. The caller must ensure that it is in no namespace."""
        self._cluster(name)
        if name in self._configured:
            raise ClusterRejected(
                f"cluster {name!r} is in the configuration: remove it from cluster.remotes on all hosts, and restart"
            )
        await self._write(
            name, lambda stored: self._store.delete_metadata(PREFIX + name, expected_version=stored), is_needed=True
        )
        await self.refresh()

    async def refresh(self) -> None:
        """Read the stored clusters, and drop connections whose cluster or address has changed."""
        stored = await self._store.list_metadata(prefix=PREFIX, after=None, limit=CLUSTERS_MAX)
        known = dict(self._configured)
        forbidden = set()
        for row in stored:
            cluster = _decoded(row)
            if self._contradicts(cluster, known):
                continue
            if not is_address_allowed(cluster.address, self._config.allowed_addresses):
                # The setting may be stricter than when the cluster was added.
                if cluster.name in known:
                    continue
                # Its failover versions stay valid.
                forbidden.add(cluster.name)
                cluster = replace(cluster, is_connected=False, is_replicated=False)
            known[cluster.name] = cluster
        self._known = known
        self._note_forbidden(frozenset(forbidden))
        versions = {name: cluster.initial_version for name, cluster in known.items()}
        shared = [name for name, cluster in known.items() if cluster.is_connected and cluster.is_replicated]
        present = ClusterVersions(self._config.increment, {self._config.name: self._config.initial_version, **versions})
        if (present, frozenset(shared)) != (self.clusters.versions, self.clusters.remotes):
            self.clusters.update(present, shared)
            _log.info("clusters changed", here=self.clusters.here, remotes=sorted(shared))
        for name in list(self._connections):
            if name in forbidden or name not in known or known[name].address != self._connections[name][0]:
                self._disconnect(name)

    async def _refresh_forever(self) -> None:
        is_failing = False
        while True:
            try:
                await asyncio.gather(*(self._ask(cluster) for cluster in self._unasked()))
                await asyncio.sleep(self._refresh_s)
                await self.refresh()
                is_failing = False
            except Exception as failure:  # noqa: BLE001 - known clusters stay, and the refresh is retried
                if not is_failing:
                    _log.warning("clusters not refreshed", **reported(failure, "reason"))
                is_failing = True
                await asyncio.sleep(self._refresh_s)

    def _unasked(self) -> list[KnownCluster]:
        return [one for one in self._known.values() if one.is_connected and one.name not in self._infos]

    async def _ask(self, cluster: KnownCluster) -> None:
        """Confirm the identity of a cluster; one that does not respond is asked again."""
        try:
            async with asyncio.timeout(INFO_S_MAX):
                info = await self._connection(cluster).info()
        except (FairleadError, TimeoutError):
            return
        said = (info.name, info.initial_version, info.increment)
        expected = (cluster.name, cluster.initial_version, self._config.increment)
        if said == expected:
            self._wrong.pop(cluster.name, None)
            self._infos[cluster.name] = info
            return
        if cluster.name not in self._wrong:
            wrong = self._wrong[cluster.name] = NotThatCluster(
                f"the cluster at {cluster.address} is {_described(*said)}, but here it is configured as "
                f"{_described(*expected)}: nothing is exchanged until both configurations agree"
            )
            _log.error("cluster not connected", cluster=cluster.name, reason=str(wrong))

    def _note_forbidden(self, names: frozenset[str]) -> None:
        for name in sorted(names - self._forbidden):
            address = self._known[name].address
            _log.error("cluster not connected", cluster=name, reason=_not_allowed(f"its address {address}"))
        self._forbidden = names

    def _check_allowed(self, cluster: KnownCluster) -> None:
        if cluster.name in self._forbidden:
            raise NotConnected(_not_allowed(f"the address {cluster.address} of cluster {cluster.name!r}"))

    def _unreachable(self, address: str, reason: str) -> ClusterUnreachable:
        """The error for an address without a cluster.

        It has the reason only for an address that is allowed explicitly: otherwise operators could scan ports with it.
        """
        _log.warning("cluster not added", address=address, reason=reason)
        shown = f" ({reason})" if self._config.allowed_addresses else ""
        hint = "" if shown else "; the log of the server has the reason"
        return ClusterUnreachable(
            f"no cluster responds at {address}{shown}: check that it runs, that it is Fairlead with `cluster` in its "
            f"configuration, and that this is its frontend's address{hint}"
        )

    def _described(self, cluster: KnownCluster) -> KnownCluster:
        info = self._infos.get(cluster.name)
        return cluster if info is None else replace(cluster, cluster_id=info.cluster_id, shards=info.shards)

    def _cluster(self, name: str) -> KnownCluster:
        cluster = self._known.get(name)
        if cluster is None:
            others = ", ".join(sorted(self._known)) or "none"
            raise UnknownCluster(f"cluster {name!r} is not known here; the other clusters are: {others}")
        return cluster

    def _connection(self, cluster: KnownCluster) -> ClosableRemote:
        if cluster.name not in self._connections:
            self._connections[cluster.name] = (cluster.address, self._connect(cluster.address))
        return self._connections[cluster.name][1]

    def _disconnect(self, name: str) -> None:
        _, remote = self._connections.pop(name)
        # The next cluster at this address must confirm its identity again.
        self._infos.pop(name, None)
        self._wrong.pop(name, None)
        closing = asyncio.get_running_loop().create_task(remote.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _check_addable(self, info: ClusterInfo) -> None:
        """Reject a cluster that can't be added, with the messages of Temporal's server."""
        if info.name == self._config.name:
            raise ClusterRejected("Cannot update current cluster metadata from rpc calls")
        if info.increment != self._config.increment:
            raise ClusterRejected("Cannot add remote cluster due to failover version increment mismatch")
        if info.initial_version == self._config.initial_version or any(
            other.initial_version == info.initial_version for other in self._known.values() if other.name != info.name
        ):
            raise ClusterRejected("Cannot add remote cluster due to initial failover version conflict")
        present = self._known.get(info.name)
        if present is not None and present.initial_version != info.initial_version:
            raise ClusterRejected(
                f"cluster {info.name!r} is known here with initial version {present.initial_version}, but it "
                f"reports {info.initial_version}: the initial version of a cluster can't change"
            )
        if not 0 < info.initial_version < info.increment:
            raise ClusterRejected(
                f"cluster {info.name!r} reports initial version {info.initial_version}: it must be above 0 "
                f"and below the increment {info.increment}"
            )
        if present is None and len(self._known) >= CLUSTERS_MAX:
            raise ClusterRejected(f"{len(self._known)} other clusters are known, which is the limit: remove one first")

    def _contradicts(self, stored: KnownCluster, known: Mapping[str, KnownCluster]) -> bool:
        """Whether a stored cluster contradicts the configuration, which was changed since and takes precedence."""
        taken = {self._config.initial_version: self._config.name}
        taken |= {cluster.initial_version: name for name, cluster in known.items()}
        holder = taken.get(stored.initial_version, stored.name)
        before = known.get(stored.name)
        if stored.name != self._config.name and holder == stored.name:
            return before is not None and before.initial_version != stored.initial_version
        return True

    async def _write(self, name: str, write: Callable[[int], Awaitable[object]], *, is_needed: bool = False) -> None:
        stored = await self._store.read_metadata(PREFIX + name)
        for _ in range(WRITE_ATTEMPTS_MAX):
            if stored is None and is_needed:
                return
            try:
                await write(0 if stored is None else stored.version)
            except MetadataConflict as conflict:
                stored = conflict.present
            else:
                return
        raise ClusterUnreachable(
            f"the record of cluster {name!r} changed during {WRITE_ATTEMPTS_MAX} attempts to write it: try again"
        )


def _decoded(row: StoredMetadata) -> KnownCluster:
    try:
        return _decode(row.payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UnreadableCluster(
            f"the stored {row.key} can't be decoded ({wrong}): if no newer release wrote it, add the cluster again"
        ) from None


def _row(cluster: KnownCluster) -> tuple[str, bytes]:
    return PREFIX + cluster.name, _encode(cluster)


def _not_allowed(shown: str) -> str:
    return (
        f"{shown} is not one to which this cluster may connect: an operator of the server can add it to "
        "cluster.allowedAddresses"
    )


def _described(name: str, initial_version: int, increment: int) -> str:
    return f"{name!r} with initial version {initial_version} and increment {increment}"
