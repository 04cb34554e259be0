"""The cluster that `fairlead admin` calls: any host lists the others, and each is asked about its partitions."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

from fairlead.api.namespace_lookup import (
    FIND_NAMESPACES,
    GIVEN_MAX,
    FindNamespacesRequest,
    FindNamespacesResponse,
)
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.core.namespaces import VERSION_MARK, NamespaceNames, split_version
from fairlead.core.partitions import Partition, PartitionConfig, TaskQueueId, TaskType
from fairlead.matching.messages import CountsInfo, DescribeResponse, ExplainResponse, UpdateResponse
from fairlead.matching.messages.inspection import PeekResponse, PurgeResponse
from fairlead.matching.operator_client import OperatorClient
from fairlead.membership.ring import NoResponse, RemoteRing, RingResponse
from fairlead.rpc.hosts.caller import Caller, Method, NotReached, Request, Response
from fairlead.rpc.hosts.credentials import ANONYMOUS, Credentials
from fairlead.server import new_caller

REASON_CHARACTERS_MAX = 60
# Message of a server to a caller that it does not know.
UNAUTHORIZED = "Request unauthorized."
# Short reasons for the user, by a part of the network error's text in lower case.
_REASONS = {
    "connection refused": "connection refused",
    "timed out": "timed out",
    "deadline": "timed out",
    "errors resolving": "no such host name",
    "no route to host": "no route to host",
    "is stopping": "it is stopping",
}


class Unauthorized(FixRequest):
    """The server does not know the caller."""


class UnknownTaskQueue(FixRequest):
    """The store has no such task queue."""


class UnknownNamespace(FixRequest):
    """No namespace is registered under this name or id."""


@dataclass(frozen=True, slots=True)
class Described:
    """Descriptions of a task queue's partitions, by number; `missing` has the errors of the other partitions."""

    config: PartitionConfig
    answers: Sequence[DescribeResponse]
    missing: dict[int, str]

    @property
    def counts(self) -> CountsInfo:
        """The source of the partition counts, as the root reports it."""
        found = next((answer.counts for answer in self.answers if answer.counts is not None), None)
        # A root of an older release does not report the source: then it is the database, or no counts are stored.
        return found or CountsInfo(False, self.config.counts, self.config.counts, [])


class Cluster:
    """Operator calls to a cluster. Each call takes at most `timeout_s`."""

    def __init__(self, caller: Caller, ring: RemoteRing, *, timeout_s: float) -> None:
        self.ring = ring
        self.timeout_s = timeout_s
        self._caller = caller
        self._client = OperatorClient(caller, ring, random=random.random)
        self._timeout_s = timeout_s
        self._names = NamespaceNames()

    async def ask(
        self, method: Method[Request, Response], request: Request, *, timeout_s: float | None = None
    ) -> Response:
        """Call one host, with a method to which all hosts give the same response."""
        host = min(self.ring.hosts)
        return await self._caller.call(host, method, request, timeout_s=timeout_s or self._timeout_s)

    async def ask_all(self, method: Method[Request, Response], request: Request) -> dict[str, Response | FairleadError]:
        """Call every host; return each host's response or error."""

        async def ask_one(host: str) -> Response | FairleadError:
            try:
                return await self._caller.call(host, method, request, timeout_s=self._timeout_s)
            except FairleadError as failure:
                return failure

        hosts = sorted(self.ring.hosts)
        return dict(zip(hosts, await asyncio.gather(*map(ask_one, hosts)), strict=True))

    async def namespace_id(self, given: str, task_queue: str, types: Sequence[TaskType]) -> str:
        """Resolve a namespace's name or id to its id, preferring a namespace that has the task queue.

        A client of task queues alone may use any string as a namespace, also the name of a registered namespace. The
        registered namespace wins, unless only the client's namespace has the task queue.
        """
        candidates = await self._meant(given)
        if len(candidates) > 1:
            wanted = {TaskQueueId(candidate, task_queue, task_type) for candidate in candidates for task_type in types}
            for candidate in candidates:
                if any(known in wanted for known in await self._of_namespace(candidate)):
                    return candidate
        return candidates[0]

    async def namespace_name(self, given: str) -> str:
        """Resolve a namespace's name or id to its name; `given` itself if it is not registered."""
        answer = await self._find([given])
        return next((each.name for each in answer.found), given)

    async def _meant(self, given: str) -> list[str]:
        """List the namespace ids that a name or an id may mean; a worker version after `#` is kept."""
        base, mark, version = given.partition(VERSION_MARK)
        answer = await self._find([base])
        if not answer.found and answer.is_any_registered and not await self._of_namespace(given):
            raise UnknownNamespace(
                f"no namespace with the name or id {base!r}: `temporal operator namespace list` lists all namespaces, "
                "and `fairlead admin tasklist list` those with task queues"
            )
        # Two namespaces match if the name of one is the id of the other.
        by_name_first = sorted(answer.found, key=lambda each: each.name != base)
        bases = dict.fromkeys([*(each.id for each in by_name_first), base])
        return [f"{each}{mark}{version}" for each in bases]

    async def _find(self, given: Sequence[str]) -> FindNamespacesResponse:
        """Look namespaces up in the registry, and remember their names."""
        answer = await self.ask(FIND_NAMESPACES, FindNamespacesRequest(list(given)))
        for each in answer.found:
            self._names.put(each.id, each.name)
        return answer

    async def _learn(self, task_queues: Iterable[TaskQueueId]) -> None:
        bases = {split_version(each.namespace_id)[0] for each in task_queues}
        unknown_ids = iter(sorted(base for base in bases if self._names.find(base) is None))
        while some := list(islice(unknown_ids, GIVEN_MAX)):
            await self._find(some)

    def shown(self, task_queue: TaskQueueId) -> TaskQueueId:
        """Return the task queue for display: with the namespace's name, and the worker version spelled out."""
        return task_queue._replace(namespace_id=self._names.shown(task_queue.namespace_id))

    def as_given(self, task_queue: TaskQueueId) -> TaskQueueId:
        """Return the task queue for a command line: with the namespace in the form that `--namespace` accepts."""
        base, mark, version = task_queue.namespace_id.partition(VERSION_MARK)
        return task_queue._replace(namespace_id=f"{self._names.find(base) or base}{mark}{version}")

    async def describe(self, task_queue: TaskQueueId, *, keys_max: int = 0, must_exist: bool = True) -> Described:
        """Describe all read partitions. Raises the root's error, since only the root knows their number."""
        if must_exist:
            await self.check_exists(task_queue)
        found = await self._client.describe(task_queue, keys_max=keys_max, timeout_s=self._timeout_s)
        if found.config is None:
            raise found.missing[0]
        answers = [found.partitions[number] for number in sorted(found.partitions)]
        missing = {number: str(found.missing[number]) for number in sorted(found.missing)}
        return Described(found.config, answers, missing)

    async def explain(self, task_queue: TaskQueueId) -> ExplainResponse:
        """Return the scaler's decisions."""
        await self.check_exists(task_queue)
        return await self._client.explain(task_queue, timeout_s=self._timeout_s)

    async def update(self, task_queue: TaskQueueId, *, read: int, write: int, force: bool) -> UpdateResponse:
        """Change the number of partitions."""
        return await self._client.update(task_queue, read=read, write=write, force=force, timeout_s=self._timeout_s)

    async def peek(self, partition: Partition, *, limit: int) -> PeekResponse:
        """Return the first tasks that wait in a partition."""
        return await self._client.peek(partition, limit=limit, timeout_s=self._timeout_s)

    async def purge(self, partition: Partition) -> PurgeResponse:
        """Remove the tasks of clients from a partition."""
        return await self._client.purge(partition, timeout_s=self._timeout_s)

    async def task_queues(self, namespace: str | None) -> dict[TaskQueueId, list[int]]:
        """Return stored task queues with their partitions: of one namespace, given by name or id, or of all if None."""
        if namespace is None:
            found = await self._client.list_task_queues(None, timeout_s=self._timeout_s)
        else:
            found = {}
            for candidate in await self._meant(namespace):
                found |= await self._of_namespace(candidate)
        await self._learn(found)
        return found

    async def _of_namespace(self, namespace_id: str) -> dict[TaskQueueId, list[int]]:
        return await self._client.list_task_queues(namespace_id, timeout_s=self._timeout_s)

    async def hosts(self) -> dict[str, RingResponse | FairleadError]:
        """Return each host's view of the ring, or its error."""
        return await self._client.rings(timeout_s=self._timeout_s)

    async def check_named(self, task_queue: TaskQueueId) -> None:
        """Raise an error if no task queue of any type has this name."""
        if not any(known.name == task_queue.name for known in await self._of_namespace(task_queue.namespace_id)):
            raise unknown(self.shown(task_queue))

    async def check_exists(self, task_queue: TaskQueueId) -> None:
        """Raise an error if the task queue was never used: a call to its root would create it."""
        if task_queue not in await self._of_namespace(task_queue.namespace_id):
            raise unknown(self.shown(task_queue))


def why_silent(error: FairleadError) -> str:
    """Return the reason why a host did not respond; the usual reasons are a few words."""
    reported = str(error)
    for words, reason in _REASONS.items():
        if words in reported.lower():
            return reason
    return (
        reported if len(reported) <= REASON_CHARACTERS_MAX else reported[: REASON_CHARACTERS_MAX - 3].rstrip() + "..."
    )


def unknown(task_queue: TaskQueueId) -> UnknownTaskQueue:
    """Return the error for a task queue that the store does not have."""
    return UnknownTaskQueue(
        f"no task queue {task_queue.name!r} for {task_queue.type.name.lower()} tasks in namespace "
        f"{task_queue.namespace_id!r}: `fairlead admin tasklist list` lists the existing ones"
    )


@asynccontextmanager
async def connect(address: str, *, timeout_s: float, credentials: Credentials = ANONYMOUS) -> AsyncIterator[Cluster]:
    """Connect to the cluster of the host at `address`."""
    caller = new_caller(credentials)
    ring = RemoteRing(caller, [address], clock=time.time)
    try:
        try:
            await ring.open()
        except NoResponse as nobody:
            if UNAUTHORIZED in str(nobody):
                raise Unauthorized(
                    f"the server at {address} refuses: give --api-key (or FAIRLEAD_API_KEY), --secret-file or --tls-*, "
                    "of a caller with the right role"
                ) from nobody
            raise NotReached(
                f"no server answers at {address}: is it running, and is --address (or FAIRLEAD_ADDRESS) right?"
            ) from nobody
        yield Cluster(caller, ring, timeout_s=timeout_s)
    finally:
        await ring.close()
        await caller.close()
