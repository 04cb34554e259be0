"""Keeps global namespaces equal in all clusters: each cluster pulls the records of the others and merges them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec

from fairlead.aio.coalescer import Coalescer
from fairlead.api.clusters import Clusters
from fairlead.api.errors import AlreadyExists
from fairlead.api.namespaces import DELETED, USABLE_STATES, Namespace, Namespaces
from fairlead.core.errors import FairleadError, GiveUp, reported
from fairlead.core.versions import LOCAL_VERSION, UnownedVersion
from fairlead.replication.messages import NamespaceRecord, NamespacesRequest, NamespacesResponse
from fairlead.replication.namespace_merge import (
    DifferentNamespaces,
    NotShared,
    accepted,
    digest_of,
    merge,
    replicated,
    told_to,
)
from fairlead.replication.remote import Remote
from fairlead.telemetry import NAMESPACE_CONFLICTS, Metrics, get_log

INTERVAL_S = 1.0
# Bytes of one page; a page has at least one record.
PAGE_BYTES_MAX = 1 << 20
# Pages of one pull: more than the largest possible set of namespaces needs.
PAGES_MAX = 1_000
FAILED_REFRESHES_REPORTED = 5
# Number of pulls with a record whose sender does not share the namespace, until that is an error: a cluster that was
# just added may send the namespace before this cluster knows of it.
REFUSALS_LOGGED = 5
# Number of records that are remembered because they can't be merged; then all are forgotten.
REMEMBERED_MAX = 10_000
# Number of clusters whose namespaces are kept sorted in memory.
READERS_MAX = 65
# Configuration and failover versions must stay below: the next ones must fit into 64 bits.
VERSIONS_END = 1 << 53

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Namespace).decode
_log = get_log("replication.namespaces")


class ContradictoryRecord(GiveUp):
    """A record can't be true: for example, the cluster in which it is active does not own its version."""


class NamespaceSync:
    """Pulls the global namespaces of every other cluster, each second and when a cluster reports changes.

    A cluster gets and changes only the namespaces that include it. A new namespace is created with the same id, if it
    includes both clusters. A namespace whose name another namespace has here is skipped, and an error is logged once.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        remotes: Callable[[str], Remote],
        namespaces: Namespaces,
        metrics: Metrics,
        is_leader: Callable[[], bool] = lambda: True,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """`is_leader`: whether this host pulls each second for its cluster; all hosts pull when nudged."""
        self._clusters = clusters
        self._remotes = remotes
        self._namespaces = namespaces
        self._metrics = metrics
        self._is_leader = is_leader
        self._interval_s = interval_s
        # Digest of each cluster's namespaces when all of them were merged here.
        self._digests: dict[str, str] = {}
        self._refreshes = Coalescer(self._pull)
        # Failed pulls in a row, by cluster.
        self._failed: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()
        # Pulls with a record that was refused because its sender does not share the namespace.
        self._refused: Counter[tuple[str, str]] = Counter()
        self._running: asyncio.Task[None] | None = None
        # By cluster: the namespaces that it gets, and their digest.
        self._shared: dict[str, tuple[list[Namespace], str]] = {}
        namespaces.on_change(self._forget_shared)

    def open(self) -> None:
        """Start pulling."""
        self._running = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        """Stop pulling."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None
        await self._refreshes.close()

    def answer(self, request: NamespacesRequest) -> NamespacesResponse:
        """The response to the pull of `request.cluster`: the global namespaces that include it, or have included it."""
        shared, digest = self._shared_with(request.cluster)
        if request.digest == digest:
            return NamespacesResponse(digest)
        records: list[NamespaceRecord] = []
        size_bytes = 0
        for namespace in shared:
            if namespace.id <= request.after_id:
                continue
            payload = _encode(namespace)
            if records and size_bytes + len(payload) > PAGE_BYTES_MAX:
                return NamespacesResponse(digest, tuple(records), records[-1].namespace_id)
            size_bytes += len(payload)
            records.append(NamespaceRecord(namespace.id, namespace.name, payload))
        return NamespacesResponse(digest, tuple(records))

    async def pull(self, cluster: str) -> None:
        """Pull all namespaces of `cluster`; a call during a running pull waits for the next one."""
        await self._refreshes.refresh(cluster)

    async def _pull(self, cluster: str) -> None:
        remote = self._remotes(cluster)
        after_id, digest, is_whole = "", "", True
        for _ in range(PAGES_MAX):
            known = "" if after_id else self._digests.get(cluster, "")
            asked = NamespacesRequest(known, after_id, self._clusters.here)
            page = await remote.namespaces(asked)
            # If a namespace changed during this pull, the digests differ, and the next pull reads all again.
            is_whole = is_whole and digest in ("", page.digest)
            digest = page.digest
            for record in page.records:
                is_whole = await self._take(cluster, record) and is_whole
            after_id = page.next_after_id
            if not after_id:
                break
        if is_whole and not after_id:
            self._digests[cluster] = digest

    async def _take(self, cluster: str, record: NamespaceRecord) -> bool:
        """Merge one record; False if it must be tried again."""
        try:
            arriving = _decode(record.payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            self._log_once(
                cluster, record, f"the record can't be decoded ({wrong}): a newer release may have written it"
            )
            return False
        try:
            await self._merge(cluster, arriving)
        except NotShared as foreign:
            if len(self._refused) >= REMEMBERED_MAX:
                self._refused.clear()
            self._refused[cluster, record.name] += 1
            if self._refused[cluster, record.name] >= REFUSALS_LOGGED:
                self._log_once(cluster, record, str(foreign))
            return False
        except DifferentNamespaces as different:
            self._log_once(cluster, record, str(different))
        except (ContradictoryRecord, UnownedVersion) as wrong:
            # The record is merged later, when the cluster that owns its version is known here.
            self._log_once(cluster, record, str(wrong))
            return False
        except FairleadError as failure:
            _log.warning("namespace not merged", namespace=record.name, source=cluster, reason=str(failure))
            return False
        return True

    def _log_once(self, cluster: str, record: NamespaceRecord, reason: str) -> None:
        """Log a record that can't be merged: once, although it is pulled again and again."""
        if (cluster, record.name) not in self._logged:
            if len(self._logged) >= REMEMBERED_MAX:
                self._logged.clear()
            self._logged.add((cluster, record.name))
            self._metrics.count(NAMESPACE_CONFLICTS, cluster)
            _log.error("namespace not replicated", namespace=record.name, source=cluster, reason=reason)

    def _check(self, arriving: Namespace) -> None:
        """Raise for a namespace that no cluster, or more than one, could write to."""
        version = arriving.failover_version
        if arriving.state not in USABLE_STATES or max(version, arriving.config_version) >= VERSIONS_END:
            raise ContradictoryRecord(
                f"namespace {arriving.name!r} has state {arriving.state} and versions {arriving.config_version} and "
                f"{version}: the state must be registered or deprecated, the versions must be below {VERSIONS_END}; "
                "check the cluster that sent it"
            )
        if version == LOCAL_VERSION or not arriving.is_global:
            raise ContradictoryRecord(
                f"namespace {arriving.name!r} has the clusters {', '.join(arriving.clusters)}, but is not global "
                f"(version {version}): promote it in the cluster that sent it"
            )
        owner = self._clusters.versions.owner(version)
        if owner != arriving.active_cluster:
            raise ContradictoryRecord(
                f"namespace {arriving.name!r} is active in {arriving.active_cluster!r} at version {version}, which "
                f"{owner!r} owns: check the configuration of the cluster that sent it"
            )

    async def _merge(self, cluster: str, arriving: Namespace) -> None:
        present = self._namespaces.cached_id(arriving.id)
        if present is not None and present.state == DELETED:
            return
        here = self._clusters.here
        if present is None and here not in arriving.clusters:
            # The namespace belongs to other clusters only, or this cluster does not have it any more.
            return
        self._check(arriving)

        def change(stored: Namespace) -> Namespace:
            return accepted(stored, arriving, sender=cluster, here=here)

        if present is not None:
            if change(present) != present:
                await self._namespaces.change(arriving.id, change)
            return
        new = accepted(None, arriving, sender=cluster, here=here)
        holder = self._namespaces.cached(arriving.name)
        if holder is not None:
            merge(holder, arriving)
        try:
            await self._namespaces.create(new)
        except AlreadyExists:
            # Another host of this cluster created the namespace first, or another namespace has the name. In the second
            # case the merge below raises an error.
            stored = await self._namespaces.read(arriving.name)
            merge(stored, arriving)
            await self._namespaces.change(stored.id, change)

    async def _refresh_forever(self) -> None:
        while True:
            if self._is_leader():
                await asyncio.gather(*(self._refresh(cluster) for cluster in sorted(self._clusters.remotes)))
            await asyncio.sleep(self._interval_s)

    async def _refresh(self, cluster: str) -> None:
        try:
            await self.pull(cluster)
            self._failed[cluster] = 0
        except Exception as failure:  # noqa: BLE001 - the next pull follows after any error
            # The merged records stay in use. Warn once, after some failures: a cluster that just starts is no problem.
            self._failed[cluster] += 1
            if self._failed[cluster] == FAILED_REFRESHES_REPORTED:
                _log.warning("namespaces of another cluster not pulled", source=cluster, **reported(failure, "reason"))

    def _shared_with(self, cluster: str) -> tuple[list[Namespace], str]:
        found = self._shared.get(cluster)
        if found is None:
            records = sorted(
                (
                    told_to(cluster, namespace) if cluster else replicated(namespace)
                    for namespace in self._namespaces.all()
                    if _is_for(cluster, namespace)
                ),
                key=lambda namespace: namespace.id,
            )
            found = (records, f"{digest_of(records):016x}")
            if len(self._shared) >= READERS_MAX:
                self._shared.clear()
            self._shared[cluster] = found
        return found

    def _forget_shared(self, _namespace: Namespace) -> None:
        self._shared.clear()


def _is_for(cluster: str, namespace: Namespace) -> bool:
    """Whether a cluster gets the namespace; a cluster without a name gets all global ones."""
    if not namespace.is_global or namespace.state == DELETED:
        return False
    return not cluster or cluster in namespace.clusters or cluster in namespace.former_clusters


async def nudge_all(remotes: Callable[[str], Remote], clusters: Clusters, *, timeout_s: float = INTERVAL_S) -> None:
    """Make all other clusters pull this cluster's namespaces now; a cluster that doesn't respond pulls them later by
    itself.
    """

    async def nudge(cluster: str) -> None:
        with suppress(FairleadError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await remotes(cluster).nudge()

    await asyncio.gather(*(nudge(cluster) for cluster in sorted(clusters.remotes)))
