"""Keeps the namespaces that clusters share the same in all of them: each asks the others what they have, and merges."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec

from fairlead.cluster.turns import Turns
from fairlead.core.errors import FairleadError, GiveUp
from fairlead.core.versions import LOCAL_VERSION, UnownedVersion
from fairlead.history.clusters import Clusters
from fairlead.history.namespaces import DELETED, Namespace, Namespaces
from fairlead.history.refusals import Refused
from fairlead.replication.merging import DifferentNamespaces, digest_of, merge, replicated
from fairlead.replication.messages import NamespaceRecord, NamespacesAnswer, NamespacesRequest
from fairlead.replication.remote import Remote
from fairlead.rpc import Code
from fairlead.telemetry import NAMESPACE_CONFLICTS, Metrics, get_log

INTERVAL_S = 1.0
# Of one answer; one record is always in it.
PAGE_BYTES_MAX = 1 << 20
# Pages of one look: more than all namespaces that a cluster may have, even if each is as large as it may be.
PAGES_MAX = 1_000
FAILED_LOOKS_TOLD = 5

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Namespace).decode
_log = get_log("replication.namespaces")


class ContradictoryRecord(GiveUp):
    """Another cluster says that a namespace is active where its version does not belong."""


class NamespaceSync:
    """Pulls the global namespaces of every other cluster, each second and when one of them says that it has news.

    A namespace that is new here is created with the id that it has there, if this cluster is one of its own. One that
    has the same name here and another id is left alone, and told once.
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
        """`is_leader`: whether this host is the one of its cluster that looks each second; all look when nudged."""
        self._clusters = clusters
        self._remotes = remotes
        self._namespaces = namespaces
        self._metrics = metrics
        self._is_leader = is_leader
        self._interval_s = interval_s
        # What each cluster had when all of it had been merged here.
        self._digests: dict[str, str] = {}
        self._looks = Turns(self._pull)
        # Looks in a row that failed.
        self._failed: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()
        self._running: asyncio.Task[None] | None = None
        self._shared: tuple[list[Namespace], str] | None = None
        namespaces.on_change(self._forget_shared)

    def open(self) -> None:
        """Look from now on."""
        self._running = asyncio.create_task(self._look_forever())

    async def close(self) -> None:
        """Stop looking."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None
        await self._looks.close()

    def answer(self, request: NamespacesRequest) -> NamespacesAnswer:
        """What another cluster gets when it looks at this one."""
        shared, digest = self._all_shared()
        if request.digest == digest:
            return NamespacesAnswer(digest)
        records: list[NamespaceRecord] = []
        size_bytes = 0
        for namespace in shared:
            if namespace.id <= request.after_id:
                continue
            payload = _encode(namespace)
            if records and size_bytes + len(payload) > PAGE_BYTES_MAX:
                return NamespacesAnswer(digest, tuple(records), records[-1].namespace_id)
            size_bytes += len(payload)
            records.append(NamespaceRecord(namespace.id, namespace.name, payload))
        return NamespacesAnswer(digest, tuple(records))

    async def pull(self, cluster: str) -> None:
        """Have all that `cluster` has; who asks while this is under way waits for a look that begins after it."""
        await self._looks.take(cluster)

    async def _pull(self, cluster: str) -> None:
        remote = self._remotes(cluster)
        after_id, digest, is_whole = "", "", True
        for _ in range(PAGES_MAX):
            asked = NamespacesRequest("" if after_id else self._digests.get(cluster, ""), after_id)
            page = await remote.namespaces(asked)
            # Those that changed while this looked are seen by the next look.
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
        """Merge one; False where it has to be tried again."""
        try:
            arriving = _decode(record.payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            self._tell(cluster, record, f"it can't be read ({wrong}): is it of a newer release?")
            return False
        try:
            self._check(arriving)
            await self._merge(arriving)
        except DifferentNamespaces as different:
            self._tell(cluster, record, str(different))
        except (ContradictoryRecord, UnownedVersion) as wrong:
            # Where the cluster is made known that it belongs to, it is taken then.
            self._tell(cluster, record, str(wrong))
            return False
        except FairleadError as failure:
            _log.warning("namespace not merged", namespace=record.name, source=cluster, reason=str(failure))
            return False
        return True

    def _tell(self, cluster: str, record: NamespaceRecord, reason: str) -> None:
        """Once, though it is looked at again and again."""
        if (cluster, record.name) not in self._told:
            self._told.add((cluster, record.name))
            self._metrics.count(NAMESPACE_CONFLICTS, cluster)
            _log.error("namespace not replicated", namespace=record.name, source=cluster, reason=reason)

    def _check(self, arriving: Namespace) -> None:
        """Refuse one that could not be active anywhere: nobody could write for it."""
        version = arriving.failover_version
        if version == LOCAL_VERSION or not arriving.is_global:
            if self._clusters.here not in arriving.clusters:
                return
            raise ContradictoryRecord(
                f"namespace {arriving.name!r} is said to live in {', '.join(arriving.clusters)} and has version "
                f"{version}, at which each of them would write: promote it in the cluster that says so"
            )
        owner = self._clusters.versions.owner(version)
        if owner != arriving.active_cluster:
            raise ContradictoryRecord(
                f"namespace {arriving.name!r} is said to be active in {arriving.active_cluster!r} at version "
                f"{version}, which is one of {owner!r}: look at the cluster that says so"
            )

    async def _merge(self, arriving: Namespace) -> None:
        present = self._namespaces.cached_id(arriving.id)
        if present is not None and present.state == DELETED:
            return
        if present is not None:
            if merge(present, arriving) != present:
                await self._namespaces.change(arriving.id, lambda stored: merge(stored, arriving))
            return
        if self._clusters.here not in arriving.clusters:
            return
        holder = self._namespaces.cached(arriving.name)
        if holder is not None:
            merge(holder, arriving)
        try:
            await self._namespaces.create(merge(None, arriving))
        except Refused as refusal:
            if refusal.code != Code.ALREADY_EXISTS:
                raise
            # Another host of this cluster was faster; or somebody else has the name, and merging says so.
            stored = await self._namespaces.read(arriving.name)
            merge(stored, arriving)
            await self._namespaces.change(stored.id, lambda now: merge(now, arriving))

    async def _look_forever(self) -> None:
        while True:
            if self._is_leader():
                await asyncio.gather(*(self._look(cluster) for cluster in sorted(self._clusters.remotes)))
            await asyncio.sleep(self._interval_s)

    async def _look(self, cluster: str) -> None:
        try:
            await self.pull(cluster)
            self._failed[cluster] = 0
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is looked again
            # What is known stays in use. It is told once, and not of one that is just starting.
            self._failed[cluster] += 1
            if self._failed[cluster] == FAILED_LOOKS_TOLD:
                unexpected = None if isinstance(failure, FairleadError) else failure
                _log.warning(
                    "namespaces of another cluster not seen", source=cluster, reason=str(failure), exc_info=unexpected
                )

    def _all_shared(self) -> tuple[list[Namespace], str]:
        if self._shared is None:
            shared = sorted(
                (
                    replicated(namespace)
                    for namespace in self._namespaces.all()
                    if namespace.is_global and namespace.state != DELETED
                ),
                key=lambda namespace: namespace.id,
            )
            self._shared = (shared, f"{digest_of(shared):016x}")
        return self._shared

    def _forget_shared(self, _namespace: Namespace) -> None:
        self._shared = None


async def nudge_all(remotes: Callable[[str], Remote], clusters: Clusters, *, timeout_s: float = INTERVAL_S) -> None:
    """Have all other clusters look at this one's namespaces; those that do not answer look by themselves."""

    async def nudge(cluster: str) -> None:
        with suppress(FairleadError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await remotes(cluster).nudge()

    await asyncio.gather(*(nudge(cluster) for cluster in sorted(clusters.remotes)))
