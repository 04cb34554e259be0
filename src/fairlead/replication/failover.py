"""Fails a namespace over to another cluster: at once, or when that cluster has all of this cluster's writes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from fairlead.api.clusters import Clusters
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.api.times import SECOND_NS
from fairlead.core.errors import FairleadError, FixRequest, RetryLater
from fairlead.history.client import HistoryClient
from fairlead.history.messages.stream import HandedOver, HandOver, NamespaceChanged
from fairlead.replication.messages import DeadLetterCountRequest, FailOverRequest, FailOverResponse
from fairlead.replication.namespace_merge import united, united_origins
from fairlead.replication.namespaces import nudge_all
from fairlead.replication.remote import Remote, RemoteUnavailable
from fairlead.rpc.hosts.caller import Handlers, Method
from fairlead.telemetry import get_log

Said = TypeVar("Said")

TIMEOUT_S_DEFAULT = 60.0
TIMEOUT_S_MAX = 3_600.0
# Maximum seconds for which writes wait during a handover; after that, the namespace stays where it is. A handover has
# at least `HANDOVER_S_MIN`, even if the request's timeout is shorter.
HANDOVER_S_MAX = 10.0
HANDOVER_S_MIN = 3.0
# Seconds at the end of a handover in which the namespace is not moved any more: every host must get the new active
# cluster before writes continue.
SETTLING_S = 2.0
# Seconds between checks whether the target has caught up, at first and at most.
POLL_S_MIN = 0.02
POLL_S_MAX = 0.5
# Seconds after which a target that does not respond counts as down.
ANSWERS_S_MAX = 3.0
SHARD_CALL_S = 5.0
SHARDS_AT_ONCE = 32

_decode = msgspec.msgpack.Decoder(HandedOver).decode
_log = get_log("replication.failover")


class CannotFailOver(FixRequest):
    """The namespace can't be made active in that cluster."""


class NotHandedOver(RetryLater):
    """The target did not catch up in time: the namespace stays active where it was."""


class Phase(StrEnum):
    """The phase of a graceful failover."""

    NONE = "none"
    CATCHING_UP = "catching up"
    HANDING_OVER = "handing over"


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """Progress of a namespace's failover: the number of shards in which the target has caught up, and of all shards."""

    phase: str = Phase.NONE
    ready: int = 0
    shards: int = 0


class ProgressRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request for the progress of a failover."""

    namespace: str


FAIL_OVER = Method("replication.FailOver", FailOverRequest, FailOverResponse)
FAIL_OVER_PROGRESS = Method("replication.FailOverProgress", ProgressRequest, Progress)


class Failover:
    """Carries out failovers requested by operators or other clusters.

    A forced failover changes the version at once, in any cluster; writes of the old active cluster that the new one
    does not have yet arrive later, on losing branches. A graceful failover is carried out by the active cluster: the
    target catches up; then writes wait, at most `HANDOVER_S_MAX`, until the target has the last one.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        remotes: Callable[[str], Remote],
        namespaces: Namespaces,
        history: HistoryClient,
        shards: int,
        clock_ns: Callable[[], int],
        handover_s_max: float = HANDOVER_S_MAX,
    ) -> None:
        self._clusters = clusters
        self._remotes = remotes
        self._namespaces = namespaces
        self._history = history
        self._shards = shards
        self._clock_ns = clock_ns
        self._handover_s_max = handover_s_max
        self._progress: dict[str, Progress] = {}

    async def fail_over(self, request: FailOverRequest) -> FailOverResponse:
        """Make `request.to` the active cluster; the response has the namespace's new state."""
        namespace = await self._namespaces.read(request.namespace)
        check_target(namespace, request.to, self._clusters)
        if namespace.active_cluster == request.to:
            return FailOverResponse(namespace.active_cluster, namespace.failover_version)
        if not request.is_graceful:
            await self._check_answers(request.to)
            return await self._force(namespace, request.to)
        if not 0 < request.timeout_s <= TIMEOUT_S_MAX:
            raise CannotFailOver(
                f"timeout of {request.timeout_s} s is invalid: it must be above 0 and at most {TIMEOUT_S_MAX:g} s"
            )
        if not self._clusters.is_active(namespace):
            # Only the active cluster knows the last writes.
            try:
                return await self._remotes(namespace.active_cluster).fail_over(request)
            except RemoteUnavailable as failure:
                raise NotHandedOver(
                    f"cluster {namespace.active_cluster!r}, where namespace {namespace.name!r} is active, does not "
                    f"respond ({failure}): if it is down for good, fail over by force, without --graceful"
                ) from failure
        await self._check_answers(request.to)
        return await self._hand_over(namespace, request)

    async def _check_answers(self, to: str) -> None:
        """Raise if the target is down: no cluster could write to the namespace until it is back."""
        if to == self._clusters.here:
            return
        try:
            await _insist(lambda: self._remotes(to).info(), end_s=asyncio.get_running_loop().time() + ANSWERS_S_MAX)
        except FairleadError as failure:
            raise NotHandedOver(
                f"cluster {to!r} does not respond to cluster {self._clusters.here!r} ({failure}): check that it runs "
                f"and can be reached from {self._clusters.here!r}, or send the request to {to!r}"
            ) from failure

    def handlers(self) -> Handlers:
        """The operations that this host offers to `fairlead admin`."""
        handlers = Handlers()
        handlers.add(FAIL_OVER, self.fail_over)
        handlers.add(FAIL_OVER_PROGRESS, self.progress)
        return handlers

    async def progress(self, request: ProgressRequest) -> Progress:
        """The progress of a namespace's failover on this host."""
        return self._progress.get(request.namespace, Progress())

    async def propagate(self, namespace: Namespace) -> None:
        """Notify other clusters and all shards of a changed namespace; a cluster or shard that is not reached finds the
        change later.
        """
        changed = NamespaceChanged(namespace.id)

        async def notify(shard_id: int) -> None:
            await self._history.call_shard("NamespaceChanged", shard_id, changed, timeout_s=SHARD_CALL_S)

        reported = asyncio.gather(
            nudge_all(self._remotes, self._clusters), self._all_shards(range(self._shards), notify)
        )
        try:
            await reported
        except FairleadError as failure:
            _log.info("shards not notified of a changed namespace", namespace=namespace.name, reason=str(failure))

    async def _force(self, namespace: Namespace, to: str) -> FailOverResponse:
        moved = await self._move(namespace, to)
        _log.warning("namespace failed over by force", namespace=moved.name, to=to, version=moved.failover_version)
        await self.propagate(moved)
        return FailOverResponse(moved.active_cluster, moved.failover_version)

    async def _hand_over(self, namespace: Namespace, request: FailOverRequest) -> FailOverResponse:
        if namespace.name in self._progress or namespace.handover_until_ns > self._clock_ns():
            raise _already(namespace)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + request.timeout_s
        self._progress[namespace.name] = Progress(Phase.CATCHING_UP, 0, self._shards)
        try:
            # First let the target catch up while writes continue: it may be far behind.
            order = HandOver(namespace.id, 0, request.to)
            goals = await self.ask_shards(order)
            await self._until_reached(namespace, request.to, order, goals, end_s=end_s)
            await self._check_dead_letters(namespace, request.to, end_s=end_s)
            wait_s = min(self._handover_s_max, max(end_s - loop.time(), HANDOVER_S_MIN))
            until_ns = self._clock_ns() + int(wait_s * SECOND_NS)
            self._progress[namespace.name] = Progress(Phase.HANDING_OVER, 0, self._shards)
            end_s = loop.time() + wait_s - SETTLING_S
            return await self._switch(namespace, request.to, until_ns=until_ns, end_s=end_s)
        finally:
            del self._progress[namespace.name]

    async def _switch(self, namespace: Namespace, to: str, *, until_ns: int, end_s: float) -> FailOverResponse:
        """Hand the namespace over; writes wait until it ends."""
        order = HandOver(namespace.id, until_ns, to)

        def begin(now: Namespace) -> Namespace:
            self._check_same(now, namespace)
            if now.handover_until_ns > self._clock_ns():
                raise _already(now)
            return replace(now, handover_until_ns=until_ns, handover_to=to)

        try:
            await self._namespaces.change(namespace.id, begin)
            goals = await self.ask_shards(order)
            await self._until_reached(namespace, to, order, goals, end_s=end_s)
            await self._check_dead_letters(namespace, to, end_s=end_s)
            moved = await self._move(namespace, to, until_ns=until_ns)
        except BaseException:
            await asyncio.shield(self._take_back(namespace, until_ns))
            raise
        _log.info("namespace handed over", namespace=moved.name, to=to, version=moved.failover_version)
        await self.propagate(moved)
        # Writes continue only after every host knows that the namespace is active elsewhere.
        await self._let_go(moved, until_ns)
        return FailOverResponse(moved.active_cluster, moved.failover_version)

    async def _check_dead_letters(self, namespace: Namespace, to: str, *, end_s: float) -> None:
        """Raise if the target has dead letters of the namespace: these are acknowledged, but not applied."""
        asked = DeadLetterCountRequest(self._clusters.here, namespace.id)
        try:
            count = (await _insist(lambda: self._remotes(to).count_dead_letters(asked), end_s=end_s)).count
        except FairleadError as failure:
            raise NotHandedOver(
                f"cluster {to!r} does not report its number of dead letters ({failure}): namespace "
                f"{namespace.name!r} stays active in {self._clusters.here!r}"
            ) from failure
        if count:
            raise CannotFailOver(
                f"cluster {to!r} has {count} dead letters of namespace {namespace.name!r}: merge or purge them "
                "there with `fairlead admin dlq`, or fail over by force"
            )

    async def _take_back(self, namespace: Namespace, until_ns: int) -> None:
        """Cancel the handover. A handover that another request has begun meanwhile is left alone."""

        def end(now: Namespace) -> Namespace:
            return replace(now, handover_until_ns=0, handover_to="") if now.handover_until_ns == until_ns else now

        await self._namespaces.change(namespace.id, end)
        await self._let_go(namespace, until_ns)

    async def _let_go(self, namespace: Namespace, until_ns: int) -> None:
        """Allow writes again. A shard that can't be reached allows them when the handover's time is over."""
        try:
            await self.ask_shards(HandOver(namespace.id, until_ns, is_over=True))
        except FairleadError as failure:
            _log.warning("shards not notified of the end of a handover", namespace=namespace.name, reason=str(failure))

    def _check_same(self, now: Namespace, namespace: Namespace) -> None:
        if now.failover_version != namespace.failover_version:
            raise CannotFailOver(
                f"another request has failed namespace {now.name!r} over to {now.active_cluster!r} meanwhile: check "
                "the namespace, then try again"
            )

    async def _move(self, namespace: Namespace, to: str, *, until_ns: int = 0) -> Namespace:
        """Set the next failover version. With `until_ns`: only during the handover that ends at that time."""

        def move(now: Namespace) -> Namespace:
            self._check_same(now, namespace)
            now_ns = self._clock_ns()
            if until_ns and (now.handover_until_ns != until_ns or now_ns + int(SETTLING_S * SECOND_NS) > until_ns):
                # Too late: writes could continue before every host knows of the failover.
                raise NotHandedOver(
                    f"the handover took too long: namespace {namespace.name!r} stays active in "
                    f"{self._clusters.here!r}; try again, or fail over by force"
                )
            return moved_to(now, to, clusters=self._clusters, now_ns=now_ns, is_graceful=until_ns > 0)

        return await self._namespaces.change(namespace.id, move)

    async def _until_reached(
        self, namespace: Namespace, to: str, order: HandOver, goals: dict[int, HandedOver], *, end_s: float
    ) -> None:
        """Wait until the target has acknowledged, for each shard, the last task id that the shard had at the start."""
        loop = asyncio.get_running_loop()
        behind = {shard_id: goal.last_id for shard_id, goal in goals.items() if goal.acks.get(to, -1) < goal.last_id}
        phase = Phase.HANDING_OVER if order.until_ns else Phase.CATCHING_UP
        wait_s = POLL_S_MIN
        while behind:
            self._progress[namespace.name] = Progress(phase, self._shards - len(behind), self._shards)
            if loop.time() + wait_s > end_s:
                raise NotHandedOver(
                    f"cluster {to!r} is behind in {len(behind)} of {self._shards} shards: namespace "
                    f"{namespace.name!r} stays active in {self._clusters.here!r}; check the replication lag, use a "
                    "longer timeout, or fail over by force"
                )
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, POLL_S_MAX)
            for shard_id, now in (await self.ask_shards(order, behind)).items():
                if now.acks.get(to, -1) >= behind[shard_id]:
                    del behind[shard_id]

    async def ask_shards(self, order: HandOver, shards: Iterable[int] | None = None) -> dict[int, HandedOver]:
        """The response of each shard of this cluster, by default of all."""
        answers: dict[int, HandedOver] = {}

        async def ask(shard_id: int) -> None:
            try:
                # A call of a shard on this host has no timeout of its own.
                async with asyncio.timeout(SHARD_CALL_S):
                    answer = await self._history.call_shard("HandOver", shard_id, order, timeout_s=SHARD_CALL_S)
            except TimeoutError:
                raise NotHandedOver(
                    f"shard {shard_id} did not respond in {SHARD_CALL_S:g} s: check its host and store, then try again"
                ) from None
            answers[shard_id] = _decode(answer)

        await self._all_shards(range(self._shards) if shards is None else list(shards), ask)
        return answers

    async def _all_shards(self, shards: Iterable[int], ask: Callable[[int], Awaitable[None]]) -> None:
        room = asyncio.Semaphore(SHARDS_AT_ONCE)

        async def ask_in_turn(shard_id: int) -> None:
            async with room:
                await ask(shard_id)

        await asyncio.gather(*(ask_in_turn(shard_id) for shard_id in shards))


def _already(namespace: Namespace) -> CannotFailOver:
    return CannotFailOver(f"namespace {namespace.name!r} is being handed over already: wait until that is over")


def check_target(namespace: Namespace, to: str, clusters: Clusters) -> None:
    """Raise if the namespace can't be active in a cluster."""
    if not namespace.is_global:
        raise CannotFailOver(
            f"namespace {namespace.name!r} is not global: promote it first, "
            "`temporal operator namespace update --promote-global`"
        )
    if to not in clusters.versions.initial_versions:
        known = ", ".join(sorted(clusters.versions.initial_versions))
        raise CannotFailOver(f"cluster {to!r} is not known here; the known clusters are: {known}")
    if to not in namespace.clusters:
        raise CannotFailOver(
            f"cluster {to!r} is not one of the clusters of namespace {namespace.name!r} "
            f"({', '.join(namespace.clusters)}): add it first, `temporal operator namespace update --cluster`"
        )


def moved_to(
    namespace: Namespace, to: str, *, clusters: Clusters, now_ns: int, is_graceful: bool = False, came_from: str = ""
) -> Namespace:
    """The namespace with another active cluster, at the next failover version that this cluster owns.

    `came_from` is the cluster that was active before, by default that of `namespace`.
    """
    version = clusters.versions.next_version(to=to, current=namespace.failover_version)
    if version == namespace.failover_version:
        return namespace
    return replace(
        namespace,
        active_cluster=to,
        failover_version=version,
        failovers=united(namespace.failovers, ((version, now_ns),)),
        failover_origins=united_origins(
            namespace.failover_origins, ((version, came_from or namespace.active_cluster, is_graceful),)
        ),
        handover_until_ns=0,
        handover_to="",
    )


async def _insist(ask: Callable[[], Awaitable[Said]], *, end_s: float) -> Said:
    """The response of another cluster; a cluster that fails is asked again until `end_s`."""
    while True:
        try:
            return await ask()
        except FairleadError:
            if asyncio.get_running_loop().time() + POLL_S_MAX > end_s:
                raise
            await asyncio.sleep(POLL_S_MAX)
