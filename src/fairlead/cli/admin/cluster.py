"""The cluster that `fairlead admin` asks: one host tells which others there are, and each is asked for what it owns."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fairlead.cluster.calls import Answer, Caller, Method, Request
from fairlead.cluster.ring import NoAnswer, RemoteRing, RingAnswer
from fairlead.core.errors import FairleadError, FixRequest, RetryLater
from fairlead.core.partitions import PartitionConfig, TaskList
from fairlead.matching.messages import DescribeAnswer, ExplainAnswer, UpdateAnswer
from fairlead.matching.operator_client import OperatorClient
from fairlead.server import new_caller

REASON_CHARACTERS_MAX = 60
# What the network says of a host that is not there, in lower case, and what a person wants to know of it.
_REASONS = {
    "connection refused": "connection refused",
    "timed out": "timed out",
    "deadline": "timed out",
    "errors resolving": "no such host name",
    "no route to host": "no route to it",
    "is stopping": "it is stopping",
}


class NotReached(RetryLater):
    """No server answers where the command looks for one."""


class UnknownTaskList(FixRequest):
    """The store has no such task list."""


@dataclass(frozen=True, slots=True)
class Described:
    """What the partitions of a task list said, by their numbers; `missing` says why some said nothing."""

    config: PartitionConfig
    answers: Sequence[DescribeAnswer]
    missing: dict[int, str]


class Cluster:
    """What can be asked of a cluster by hand. Each question takes no longer than `timeout_s`."""

    def __init__(self, caller: Caller, ring: RemoteRing, *, timeout_s: float) -> None:
        self.ring = ring
        self.timeout_s = timeout_s
        self._caller = caller
        self._client = OperatorClient(caller, ring, random=random.random)
        self._timeout_s = timeout_s

    async def ask(self, method: Method[Request, Answer], request: Request, *, timeout_s: float | None = None) -> Answer:
        """Ask one host, whichever it is: for what all hosts answer alike."""
        host = min(self.ring.hosts)
        return await self._caller.call(host, method, request, timeout_s=timeout_s or self._timeout_s)

    async def ask_all(self, method: Method[Request, Answer], request: Request) -> dict[str, Answer | FairleadError]:
        """Ask every host: what each says, or why it does not."""

        async def ask_one(host: str) -> Answer | FairleadError:
            try:
                return await self._caller.call(host, method, request, timeout_s=self._timeout_s)
            except FairleadError as failure:
                return failure

        hosts = sorted(self.ring.hosts)
        return dict(zip(hosts, await asyncio.gather(*map(ask_one, hosts)), strict=True))

    async def describe(self, task_list: TaskList, *, keys_max: int = 0, must_exist: bool = True) -> Described:
        """All partitions that are polled. A root that does not answer is a failure: nobody knows the others then."""
        if must_exist:
            await self._check_exists(task_list)
        found = await self._client.describe(task_list, keys_max=keys_max, timeout_s=self._timeout_s)
        if found.config is None:
            raise found.missing[0]
        answers = [found.partitions[number] for number in sorted(found.partitions)]
        missing = {number: str(found.missing[number]) for number in sorted(found.missing)}
        return Described(found.config, answers, missing)

    async def explain(self, task_list: TaskList) -> ExplainAnswer:
        """What the scaler decided."""
        await self._check_exists(task_list)
        return await self._client.explain(task_list, timeout_s=self._timeout_s)

    async def update(self, task_list: TaskList, *, read: int, write: int, force: bool) -> UpdateAnswer:
        """Change the number of partitions."""
        return await self._client.update(task_list, read=read, write=write, force=force, timeout_s=self._timeout_s)

    async def task_lists(self, namespace: str | None) -> dict[TaskList, list[int]]:
        """The task lists that the store knows, and the numbers of their partitions."""
        return await self._client.list_task_lists(namespace, timeout_s=self._timeout_s)

    async def hosts(self) -> dict[str, RingAnswer | FairleadError]:
        """How each host sees the ring, or why it does not say."""
        return await self._client.rings(timeout_s=self._timeout_s)

    async def _check_exists(self, task_list: TaskList) -> None:
        """Refuse a name that was never used. To ask its root all the same would make a task list of it."""
        if task_list not in await self.task_lists(task_list.namespace_id):
            raise unknown(task_list)


def why_silent(error: FairleadError) -> str:
    """Why a host did not answer, in a few words where it is one of the usual reasons."""
    told = str(error)
    for words, reason in _REASONS.items():
        if words in told.lower():
            return reason
    return told if len(told) <= REASON_CHARACTERS_MAX else told[: REASON_CHARACTERS_MAX - 3].rstrip() + "..."


def unknown(task_list: TaskList) -> UnknownTaskList:
    """What to say of a task list that the store does not know."""
    return UnknownTaskList(
        f"no task list {task_list.name!r} for {task_list.type.name.lower()} tasks in namespace "
        f"{task_list.namespace_id!r}: `fairlead admin tasklist list` shows those that there are"
    )


@asynccontextmanager
async def connect(address: str, *, timeout_s: float) -> AsyncIterator[Cluster]:
    """Find the cluster that the host at `address` belongs to."""
    caller = new_caller()
    ring = RemoteRing(caller, [address], clock=time.time)
    try:
        try:
            await ring.open()
        except NoAnswer as nobody:
            raise NotReached(
                f"no server answers at {address}: is it running, and is --address (or FAIRLEAD_ADDRESS) right?"
            ) from nobody
        yield Cluster(caller, ring, timeout_s=timeout_s)
    finally:
        await ring.close()
        await caller.close()
