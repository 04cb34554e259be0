"""What a shard as a whole can be asked for: its stream, and what it has to know of a namespace."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from fairlead.history.namespaces import Namespaces
from fairlead.history.refusals import Refused, invalid
from fairlead.history.shard import Shard
from fairlead.history.stream_messages import (
    HandedOver,
    HandOver,
    NamespaceChanged,
    PullAnswer,
    PullRequest,
    ReplicationTask,
)
from fairlead.history.stream_rows import Streamed, StreamRow
from fairlead.rpc import Code
from fairlead.telemetry import REPLICATION_TASKS_SKIPPED

# Whatever is asked for, one answer has no more, unless one batch alone does; and nobody waits for longer.
PULL_ROWS_MAX = 2_000
PULL_BYTES_MAX = 2 << 20
PULL_WAIT_S_MAX = 30.0

_encode = msgspec.msgpack.Encoder().encode


class ShardOperation(NamedTuple):
    """Something that is asked of a shard: what the request is, and who carries it out."""

    request: type[Any]
    run: Callable[[Shard, Any], Awaitable[bytes]]


async def pull(shard: Shard, request: PullRequest) -> bytes:
    """What other clusters have to hear of, and what the one that asks has by now."""
    services = shard.services
    cluster = request.cluster
    if cluster not in services.clusters.remotes:
        raise invalid(
            f"cluster {cluster!r} is none that {services.clusters.here!r} is connected with: add it there first"
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
        wanted=lambda row: _may_be_shared(namespaces, row, cluster),
    )
    sent = [await _sent(shard, streamed, cluster) for streamed in rows]
    tasks = tuple(task for task in sent if task is not None)
    return _encode(PullAnswer(tasks, through_id, services.clock_ns(), await stream.count_behind(through_id)))


def _may_be_shared(namespaces: Namespaces, row: StreamRow, cluster: str) -> bool:
    """Whether a row is for a cluster; of a namespace that this host does not know yet, it is looked at later."""
    if row.announced_to and row.announced_to != cluster:
        return False
    namespace = namespaces.cached_id(row.namespace_id)
    return namespace is None or cluster in namespace.clusters


async def _sent(shard: Shard, streamed: Streamed, cluster: str) -> ReplicationTask | None:
    task_id, row, payload = streamed
    if payload is None and not row.is_batch:
        # Progress that is none any more is not missed by anybody.
        return None
    try:
        namespace = await shard.services.namespaces.find_id(row.namespace_id)
    except Refused as refusal:
        if refusal.code != Code.NOT_FOUND:
            raise
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
    """Have the writes of a namespace wait, or go on, or neither."""
    last_id = shard.stream.last_id
    if request.is_over:
        shard.shared.end_hand_over(request.namespace_id, request.until_ns)
    elif request.until_ns:
        last_id = await shard.hand_over(request.namespace_id, request.until_ns)
    acks = shard.stream.acks
    if request.to:
        namespaces = shard.services.namespaces
        namespace = await namespaces.find_id(request.namespace_id)
        if request.to not in namespace.clusters:
            namespace = await namespaces.read_id(request.namespace_id)
        if not shard.is_told(namespace, request.to):
            acks.pop(request.to, None)
    return _encode(HandedOver(last_id, acks))


async def namespace_changed(shard: Shard, request: NamespaceChanged) -> bytes:
    """Look at a namespace again."""
    shard.namespace_changed(await shard.services.namespaces.read_id(request.namespace_id))
    return b""


SHARD_OPERATIONS = {
    "PullStream": ShardOperation(PullRequest, pull),
    "HandOver": ShardOperation(HandOver, hand_over),
    "NamespaceChanged": ShardOperation(NamespaceChanged, namespace_changed),
}
