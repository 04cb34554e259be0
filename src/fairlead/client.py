"""Task queues without workflows: add tasks, poll for them, with fair shares for tenants.

    from fairlead.client import connect

    async with connect("127.0.0.1:7240") as client:
        await client.add("emails", b"welcome", fairness_key="acme", weight=5.0)
        task = await client.poll("emails", timeout_s=5)

This is the whole public interface: programs need nothing else of the package. Workflows and activities use Temporal's
SDKs instead.
"""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.core.namespaces import VERSION_MARK
from fairlead.core.partitions import TaskQueueId, TaskType, check_user_name
from fairlead.matching import connection
from fairlead.matching.client import ADD_TIMEOUT_S, MatchingClient
from fairlead.matching.messages import NewTask, TaskOwner
from fairlead.rpc.hosts.credentials import with_api_key

__all__ = [
    "PRIORITY_DEFAULT",
    "AddResult",
    "FairleadError",
    "FixRequest",
    "GiveUp",
    "InvalidNamespace",
    "RetryElsewhere",
    "RetryLater",
    "Task",
    "TaskQueueClient",
    "connect",
]

# Priorities are 1 (first) to 5 (last).
PRIORITY_DEFAULT: Final = 3
# Seconds that a poll waits by default. The server ends a poll after `matching.longPollExpirationInterval`, 60 s.
POLL_TIMEOUT_S: Final = 60.0


class InvalidNamespace(FixRequest):
    """The name of a namespace is empty or contains a reserved character."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task that a poll got. It is no longer stored: the worker that polled it is responsible for it.

    `was_backlogged`: the task waited in the backlog; False if it went straight from `add` to this poll.
    """

    payload: bytes
    was_backlogged: bool


@dataclass(frozen=True, slots=True)
class AddResult:
    """The outcome of a successful `add`. `is_started`: a waiting poll got the task; if not, the task is stored."""

    is_started: bool


_STARTED = AddResult(is_started=True)
_STORED = AddResult(is_started=False)


class TaskQueueClient:
    """Adds tasks to the task queues of one namespace, and polls for them. `connect` makes one.

    A namespace is a name that separates task queues with the same name. It needs no registration, and shares no task
    queue with the workflow namespace of the same name.

    Errors derive from one of four classes, which say what to do: `FixRequest`, `RetryElsewhere`, `RetryLater` and
    `GiveUp`. Requests that may succeed later have been retried until their timeout when they raise.
    """

    def __init__(self, client: MatchingClient, *, namespace: str) -> None:
        """Use `connect` instead."""
        if not namespace or VERSION_MARK in namespace:
            raise InvalidNamespace(f"namespace is {namespace!r}: give a name without {VERSION_MARK!r}")
        self._client = client
        self._namespace = namespace
        self._identity = f"{os.getpid()}@{socket.gethostname()}"

    async def add(
        self,
        task_queue: str,
        payload: bytes,
        *,
        priority: int = PRIORITY_DEFAULT,
        fairness_key: str = "",
        weight: float = 1.0,
        timeout_s: float = ADD_TIMEOUT_S,
    ) -> AddResult:
        """Add a task. When this returns, the task is stored, or a poll got it.

        Tasks with a lower `priority` are dispatched first. Among tasks of one priority, each `fairness_key` (say, a
        tenant) gets a share in proportion to its `weight`, which does not depend on the number of its tasks.

        If the outcome of an attempt is unknown, the task is added again: it may be dispatched twice. If this raises,
        the task may still have been added, except after `FixRequest`.
        """
        task = NewTask(
            priority=priority, fairness_key=fairness_key, weight=weight, payload=payload, owner=TaskOwner.CLIENT
        )
        answer = await self._client.add(self._task_queue(task_queue), task, timeout_s=timeout_s)
        return _STARTED if answer.is_started else _STORED

    async def poll(
        self,
        task_queue: str,
        *,
        timeout_s: float = POLL_TIMEOUT_S,
        identity: str | None = None,
        rate_per_s: float | None = None,
    ) -> Task | None:
        """Wait up to `timeout_s` seconds, and at most a minute, for a task; return None if none arrives.

        `identity` is the worker's name in `fairlead admin tasklist describe`: the process and the host by default.
        `rate_per_s` limits the tasks per second that this task queue dispatches to all workers together. A task that
        arrives while this call is cancelled goes to another poll.
        """
        answer = await self._client.poll(
            self._task_queue(task_queue), identity or self._identity, timeout_s=timeout_s, rate_per_s=rate_per_s
        )
        return None if answer.task is None else Task(answer.task, answer.was_backlog)

    def _task_queue(self, task_queue: str) -> TaskQueueId:
        return TaskQueueId(self._namespace, check_user_name(task_queue), TaskType.ACTIVITY)


@asynccontextmanager
async def connect(
    address: str,
    *others: str,
    namespace: str = "default",
    api_key: str = "",
    tls_ca: Path | str | None = None,
    tls_certificate: Path | str | None = None,
    tls_key: Path | str | None = None,
    tls_server_name: str = "",
) -> AsyncIterator[TaskQueueClient]:
    """Connect to the cluster of the host at `address`; `others` are tried if that host does not answer.

    An address is `HOST:PORT` of `listen` in the server's configuration, 127.0.0.1:7240 by default. The client learns
    the other hosts of the cluster by itself. `RetryLater` if no host answers.

    `api_key` is a key of `fairlead admin key create`, or a token. With any of the `tls_` options, which are names of
    PEM files, the connection is encrypted: `tls_ca` are the authorities of servers' certificates, `tls_certificate` and
    `tls_key` are this client's own, and `tls_server_name` replaces the host of the address.

    async with connect("127.0.0.1:7240") as client:
        await client.add("emails", b"welcome")
    """
    side = None
    if tls_ca or tls_certificate or tls_server_name:
        # Imported late: most programs don't use TLS.
        from fairlead.rpc.tls.client_files import client_side  # noqa: PLC0415

        side = client_side(
            authorities=None if tls_ca is None else Path(tls_ca),
            certificate=None if tls_certificate is None else Path(tls_certificate),
            key=None if tls_key is None else Path(tls_key),
            server_name=tls_server_name,
        )
    async with connection.connect(address, *others, credentials=with_api_key(api_key, side)) as client:
        yield TaskQueueClient(client, namespace=namespace)
