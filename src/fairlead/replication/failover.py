"""Makes another cluster the active one of a namespace: at once, or when it has all that was written here."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from fairlead.cluster.calls import Handlers, Method
from fairlead.core.errors import FairleadError, FixRequest, RetryLater
from fairlead.history.client import HistoryClient
from fairlead.history.clusters import Clusters
from fairlead.history.namespaces import Namespace, Namespaces
from fairlead.history.stream_messages import HandedOver, HandOver, NamespaceChanged
from fairlead.replication.merging import united
from fairlead.replication.messages import FailOverAnswer, FailOverRequest, LettersAsked
from fairlead.replication.namespaces import nudge_all
from fairlead.replication.remote import Remote, RemoteUnavailable
from fairlead.telemetry import get_log

Said = TypeVar("Said")

SECOND_NS = 10**9
TIMEOUT_S_DEFAULT = 60.0
TIMEOUT_S_MAX = 3_600.0
# For so long calls wait at most while a namespace is handed over; then it stays where it is. Whatever time was given,
# they wait for so long at least.
HANDOVER_S_MAX = 10.0
HANDOVER_S_MIN = 3.0
# The last of that time is for every host to hear that the namespace has moved, before its writes go on: it does not
# move any more then.
SETTLING_S = 2.0
# A target that is so far behind at first is waited for without holding up anybody.
POLL_S_MIN = 0.02
POLL_S_MAX = 0.5
# A target that does not answer for so long is away.
ANSWERS_S_MAX = 3.0
SHARD_CALL_S = 5.0
SHARDS_AT_ONCE = 32

_decode = msgspec.msgpack.Decoder(HandedOver).decode
_log = get_log("replication.failover")


class CannotFailOver(FixRequest):
    """The namespace can't be made active in that cluster."""


class NotHandedOver(RetryLater):
    """The target did not come up with the active cluster in time: the namespace is active where it was."""


class Phase(StrEnum):
    """How far a graceful failover is."""

    NONE = "none"
    CATCHING_UP = "catching up"
    HANDING_OVER = "handing over"


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """How far a failover of a namespace is: the shards of which the target has all, of so many."""

    phase: str = Phase.NONE
    ready: int = 0
    shards: int = 0


class ProgressRequest(msgspec.Struct, array_like=True, frozen=True):
    """Ask for the progress of a failover."""

    namespace: str


FAIL_OVER = Method("replication.FailOver", FailOverRequest, FailOverAnswer)
FAIL_OVER_PROGRESS = Method("replication.FailOverProgress", ProgressRequest, Progress)


class Failover:
    """Carries out failovers that are asked for here or by other clusters.

    A forced one moves the version at once, wherever it is asked for; what the old active cluster has written and the
    new one has not seen yet comes back later, on branches that lose. A graceful one is carried out by the active
    cluster: the target catches up; then writes wait, at most `HANDOVER_S_MAX`, until it has the last of them.
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

    async def fail_over(self, request: FailOverRequest) -> FailOverAnswer:
        """Make `request.to` the active cluster; the answer is how the namespace is then."""
        namespace = await self._namespaces.read(request.namespace)
        check_target(namespace, request.to, self._clusters)
        if namespace.active_cluster == request.to:
            return FailOverAnswer(namespace.active_cluster, namespace.failover_version)
        if not request.is_graceful:
            await self._check_answers(request.to)
            return await self._force(namespace, request.to)
        if not 0 < request.timeout_s <= TIMEOUT_S_MAX:
            raise CannotFailOver(f"a timeout of {request.timeout_s} s: give one above 0 and at most {TIMEOUT_S_MAX:g}")
        if not self._clusters.is_active(namespace):
            # Only where it is active is it known what was written last.
            try:
                return await self._remotes(namespace.active_cluster).fail_over(request)
            except RemoteUnavailable as failure:
                raise NotHandedOver(
                    f"cluster {namespace.active_cluster!r}, where namespace {namespace.name!r} is active, does not "
                    f"answer ({failure}): if it is gone, fail over by force, without --graceful"
                ) from failure
        await self._check_answers(request.to)
        return await self._hand_over(namespace, request)

    async def _check_answers(self, to: str) -> None:
        """Refuse a target that is not there: nobody could write to the namespace until it is."""
        if to == self._clusters.here:
            return
        try:
            await _insist(lambda: self._remotes(to).info(), end_s=asyncio.get_running_loop().time() + ANSWERS_S_MAX)
        except FairleadError as failure:
            raise NotHandedOver(
                f"cluster {to!r} does not answer here ({failure}): see that it runs and can be reached from "
                f"cluster {self._clusters.here!r}, or ask it itself"
            ) from failure

    def handlers(self) -> Handlers:
        """What this host answers to `fairlead admin`."""
        handlers = Handlers()
        handlers.add(FAIL_OVER, self.fail_over)
        handlers.add(FAIL_OVER_PROGRESS, self.progress)
        return handlers

    async def progress(self, request: ProgressRequest) -> Progress:
        """How far this host is with a namespace."""
        return self._progress.get(request.namespace, Progress())

    async def announce(self, namespace: Namespace) -> None:
        """Tell other clusters, and the shards of all hosts, that a namespace has changed; both look anyway, later."""
        changed = NamespaceChanged(namespace.id)

        async def tell(shard_id: int) -> None:
            await self._history.call_shard("NamespaceChanged", shard_id, changed, timeout_s=SHARD_CALL_S)

        told = asyncio.gather(nudge_all(self._remotes, self._clusters), self._all_shards(range(self._shards), tell))
        try:
            await told
        except FairleadError as failure:
            _log.info("shards not told of a namespace", namespace=namespace.name, reason=str(failure))

    async def _force(self, namespace: Namespace, to: str) -> FailOverAnswer:
        moved = await self._move(namespace, to)
        _log.warning("namespace failed over by force", namespace=moved.name, to=to, version=moved.failover_version)
        await self.announce(moved)
        return FailOverAnswer(moved.active_cluster, moved.failover_version)

    async def _hand_over(self, namespace: Namespace, request: FailOverRequest) -> FailOverAnswer:
        if namespace.name in self._progress or namespace.handover_until_ns > self._clock_ns():
            raise _already(namespace)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + request.timeout_s
        self._progress[namespace.name] = Progress(Phase.CATCHING_UP, 0, self._shards)
        try:
            # Nobody waits for a target that is far behind.
            order = HandOver(namespace.id, 0, request.to)
            goals = await self._ask_shards(order)
            await self._until_reached(namespace, request.to, order, goals, end_s=end_s)
            await self._check_letters(namespace, request.to, end_s=end_s)
            wait_s = min(self._handover_s_max, max(end_s - loop.time(), HANDOVER_S_MIN))
            until_ns = self._clock_ns() + int(wait_s * SECOND_NS)
            self._progress[namespace.name] = Progress(Phase.HANDING_OVER, 0, self._shards)
            end_s = loop.time() + wait_s - SETTLING_S
            return await self._switch(namespace, request.to, until_ns=until_ns, end_s=end_s)
        finally:
            del self._progress[namespace.name]

    async def _switch(self, namespace: Namespace, to: str, *, until_ns: int, end_s: float) -> FailOverAnswer:
        """From here on writes wait."""
        order = HandOver(namespace.id, until_ns, to)

        def begin(now: Namespace) -> Namespace:
            self._check_same(now, namespace)
            if now.handover_until_ns > self._clock_ns():
                raise _already(now)
            return replace(now, handover_until_ns=until_ns, handover_to=to)

        try:
            await self._namespaces.change(namespace.id, begin)
            goals = await self._ask_shards(order)
            await self._until_reached(namespace, to, order, goals, end_s=end_s)
            await self._check_letters(namespace, to, end_s=end_s)
            moved = await self._move(namespace, to, until_ns=until_ns)
        except BaseException:
            await asyncio.shield(self._take_back(namespace, until_ns))
            raise
        _log.info("namespace handed over", namespace=moved.name, to=to, version=moved.failover_version)
        await self.announce(moved)
        # Not before each host knows that it must not write any more.
        await self._let_go(moved, until_ns)
        return FailOverAnswer(moved.active_cluster, moved.failover_version)

    async def _check_letters(self, namespace: Namespace, to: str, *, end_s: float) -> None:
        """Refuse a target that lacks what it has acknowledged: dead letters are received, and not taken in."""
        asked = LettersAsked(self._clusters.here, namespace.id)
        try:
            count = (await _insist(lambda: self._remotes(to).count_letters(asked), end_s=end_s)).count
        except FairleadError as failure:
            raise NotHandedOver(
                f"cluster {to!r} does not say whether it could take in all ({failure}): namespace "
                f"{namespace.name!r} stays active in {self._clusters.here!r}"
            ) from failure
        if count:
            raise CannotFailOver(
                f"cluster {to!r} could not take in {count} of the batches of namespace {namespace.name!r}: there, "
                "merge or purge them, `fairlead admin dlq`, or fail over by force"
            )

    async def _take_back(self, namespace: Namespace, until_ns: int) -> None:
        """The namespace stays where it was. A hand-over that somebody else has begun meanwhile is left alone."""

        def end(now: Namespace) -> Namespace:
            return replace(now, handover_until_ns=0, handover_to="") if now.handover_until_ns == until_ns else now

        await self._namespaces.change(namespace.id, end)
        await self._let_go(namespace, until_ns)

    async def _let_go(self, namespace: Namespace, until_ns: int) -> None:
        """Writes wait no more; a shard that does not hear of it has them wait until the time is over."""
        try:
            await self._ask_shards(HandOver(namespace.id, until_ns, is_over=True))
        except FairleadError as failure:
            _log.warning("shards not told of the end of a hand-over", namespace=namespace.name, reason=str(failure))

    def _check_same(self, now: Namespace, namespace: Namespace) -> None:
        if now.failover_version != namespace.failover_version:
            raise CannotFailOver(
                f"namespace {now.name!r} was failed over by somebody else meanwhile, to {now.active_cluster!r}: "
                "look, then ask again"
            )

    async def _move(self, namespace: Namespace, to: str, *, until_ns: int = 0) -> Namespace:
        """Give it the next version. With `until_ns`: only while the hand-over lasts that is to last until then."""

        def move(now: Namespace) -> Namespace:
            self._check_same(now, namespace)
            now_ns = self._clock_ns()
            if until_ns and (now.handover_until_ns != until_ns or now_ns + int(SETTLING_S * SECOND_NS) > until_ns):
                # Writes may have gone on by the time at which each host would know that it must make none.
                raise NotHandedOver(
                    f"the time was over in which calls wait: namespace {namespace.name!r} stays active in "
                    f"{self._clusters.here!r}; try again, or fail over by force"
                )
            return moved_to(now, to, clusters=self._clusters, now_ns=now_ns)

        return await self._namespaces.change(namespace.id, move)

    async def _until_reached(
        self, namespace: Namespace, to: str, order: HandOver, goals: dict[int, HandedOver], *, end_s: float
    ) -> None:
        """Wait until the target has acknowledged what each shard had written when it was asked first."""
        loop = asyncio.get_running_loop()
        behind = {shard_id: goal.last_id for shard_id, goal in goals.items() if goal.acks.get(to, -1) < goal.last_id}
        phase = Phase.HANDING_OVER if order.until_ns else Phase.CATCHING_UP
        wait_s = POLL_S_MIN
        while behind:
            self._progress[namespace.name] = Progress(phase, self._shards - len(behind), self._shards)
            if loop.time() + wait_s > end_s:
                raise NotHandedOver(
                    f"cluster {to!r} is behind in {len(behind)} of {self._shards} shards: namespace "
                    f"{namespace.name!r} stays active in {self._clusters.here!r}; look at the replication's lag, give "
                    "it more time, or fail over by force"
                )
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, POLL_S_MAX)
            for shard_id, now in (await self._ask_shards(order, behind)).items():
                if now.acks.get(to, -1) >= behind[shard_id]:
                    del behind[shard_id]

    async def _ask_shards(self, order: HandOver, shards: Iterable[int] | None = None) -> dict[int, HandedOver]:
        answers: dict[int, HandedOver] = {}

        async def ask(shard_id: int) -> None:
            try:
                # A shard of this host has no bound of its own.
                async with asyncio.timeout(SHARD_CALL_S):
                    answer = await self._history.call_shard("HandOver", shard_id, order, timeout_s=SHARD_CALL_S)
            except TimeoutError:
                raise NotHandedOver(
                    f"shard {shard_id} gave no answer in {SHARD_CALL_S:g} s: look at its host and store, then try again"
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
    return CannotFailOver(f"namespace {namespace.name!r} is being handed over already: wait for the end of it")


def check_target(namespace: Namespace, to: str, clusters: Clusters) -> None:
    """Refuse a cluster that the namespace can't be active in."""
    if not namespace.is_global:
        raise CannotFailOver(
            f"namespace {namespace.name!r} is of this cluster only: promote it first, "
            "`temporal operator namespace update --promote-global`"
        )
    if to not in clusters.versions.initial_versions:
        known = ", ".join(sorted(clusters.versions.initial_versions))
        raise CannotFailOver(f"cluster {to!r} is not known here: there are {known}")
    if to not in namespace.clusters:
        raise CannotFailOver(
            f"cluster {to!r} is none of those that namespace {namespace.name!r} lives in "
            f"({', '.join(namespace.clusters)}): add it first, `temporal operator namespace update --cluster`"
        )


def moved_to(namespace: Namespace, to: str, *, clusters: Clusters, now_ns: int) -> Namespace:
    """The namespace with another active cluster, at the next version that belongs to that one."""
    version = clusters.versions.next_version(to=to, current=namespace.failover_version)
    if version == namespace.failover_version:
        return namespace
    return replace(
        namespace,
        active_cluster=to,
        failover_version=version,
        failovers=united(namespace.failovers, ((version, now_ns),)),
        handover_until_ns=0,
        handover_to="",
    )


async def _insist(ask: Callable[[], Awaitable[Said]], *, end_s: float) -> Said:
    """The answer of another cluster; one that was away until just now is asked again, until then."""
    while True:
        try:
            return await ask()
        except FairleadError:
            if asyncio.get_running_loop().time() + POLL_S_MAX > end_s:
                raise
            await asyncio.sleep(POLL_S_MAX)
