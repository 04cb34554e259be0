"""Operations on a whole shard: its replication stream, and its state for a namespace."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from fairlead.api.errors import InvalidArgument, NotFound
from fairlead.api.namespaces import Namespaces
from fairlead.history.messages.stream import (
    PULL_WAIT_S_MAX,
    HandedOver,
    HandOver,
    NamespaceChanged,
    PullRequest,
    PullResponse,
    ReplicationTask,
)
from fairlead.history.shard.shard import Shard
from fairlead.history.shard.stream_rows import Streamed, StreamRow
from fairlead.telemetry import REPLICATION_TASKS_SKIPPED

# Maximum rows and bytes of a pull, regardless of the request; a single batch may be larger.
PULL_ROWS_MAX = 2_000
PULL_BYTES_MAX = 2 << 20

_encode = msgspec.msgpack.Encoder().encode


class ShardOperation(NamedTuple):
    """An operation on a shard: the type of its request, and its handler."""

    request: type[Any]
    run: Callable[[Shard, Any], Awaitable[bytes]]


async def pull(shard: Shard, request: PullRequest) -> bytes:
    """The next rows of the replication stream for a cluster; also acknowledges the rows before them."""
    services = shard.services
    cluster = request.cluster
    if cluster not in services.clusters.remotes:
        raise InvalidArgument(
            f"cluster {services.clusters.here!r} is not connected to {cluster!r}: add {cluster!r} there first"
        )
    stream, namespaces = shard.stream, services.namespaces
    await stream.check_given(max(request.after_id, request.ack_id))
    stream.acknowledge(cluster, request.ack_id)
    rows, through_id = await stream.read(
        cluster,
        request.after_id,
        rows_max=max(1, min(request.rows_max, PULL_ROWS_MAX)),
        bytes_max=max(1, min(request.bytes_max, PULL_BYTES_MAX)),
        wait_s=max(0.0, min(request.wait_s, PULL_WAIT_S_MAX)),
        wanted=lambda row: _may_be_replicated(namespaces, row, cluster),
    )
    sent = [await _sent(shard, streamed, cluster) for streamed in rows]
    tasks = tuple(task for task in sent if task is not None)
    return _encode(PullResponse(tasks, through_id, services.clock_ns(), await stream.count_behind(through_id)))


def _may_be_replicated(namespaces: Namespaces, row: StreamRow, cluster: str) -> bool:
    """Whether a row may have to be sent to a cluster. True if the namespace is not cached: `_sent` checks it later."""
    if row.backfill_to and row.backfill_to != cluster:
        return False
    namespace = namespaces.cached_id(row.namespace_id)
    return namespace is None or cluster in namespace.clusters


async def _sent(shard: Shard, streamed: Streamed, cluster: str) -> ReplicationTask | None:
    task_id, row, payload = streamed
    if payload is None and not row.is_batch:
        # The activities have ended in the meantime: their progress needs no replication.
        return None
    try:
        namespace = await shard.services.namespaces.find_id(row.namespace_id)
    except NotFound:
        return None
    if cluster not in namespace.clusters:
        return None
    if payload is None:
        shard.services.metrics.count(REPLICATION_TASKS_SKIPPED, cluster)
    return ReplicationTask(
        task_id,
        row.time_us,
        row.namespace_id,
        row.workflow_id,
        row.run_id,
        row.first_event_id,
        row.last_event_id,
        row.items,
        payload or b"",
        row.start_request_id,
        is_gone=payload is None,
    )


async def hand_over(shard: Shard, request: HandOver) -> bytes:
    """Begin or end a handover of a namespace, during which its writes wait; return the acknowledged ids."""
    last_id = shard.stream.last_id
    if request.is_over:
        shard.handover_writes.end_hand_over(request.namespace_id, request.until_ns)
    elif request.until_ns:
        last_id = await shard.hand_over(request.namespace_id, request.until_ns)
    acks = shard.stream.acks
    if request.to:
        namespaces = shard.services.namespaces
        namespace = await namespaces.find_id(request.namespace_id)
        if request.to not in namespace.clusters:
            namespace = await namespaces.read_id(request.namespace_id)
        if not shard.replication_work.is_backfilled(namespace, request.to):
            acks.pop(request.to, None)
    return _encode(HandedOver(last_id, acks))


async def namespace_changed(shard: Shard, request: NamespaceChanged) -> bytes:
    """Reload a namespace after a change."""
    shard.namespace_changed(await shard.services.namespaces.read_id(request.namespace_id))
    return b""


SHARD_OPERATIONS = {
    "PullStream": ShardOperation(PullRequest, pull),
    "HandOver": ShardOperation(HandOver, hand_over),
    "NamespaceChanged": ShardOperation(NamespaceChanged, namespace_changed),
}
