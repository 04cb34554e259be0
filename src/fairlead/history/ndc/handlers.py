"""Operations of the history service that replication calls."""

from fairlead.history.messages.ndc import ReplicatedBatch, ReplicatedProgress, encode_answer
from fairlead.history.messages.restore import DryRunRequest, encode
from fairlead.history.ndc.activity_progress import apply_progress
from fairlead.history.ndc.apply import apply_batch
from fairlead.history.ndc.restore import dry_run, restore_batch
from fairlead.history.ndc.sources import shared_namespace
from fairlead.history.shard.context import Operation, OperationContext


async def _apply_progress(context: OperationContext, request: ReplicatedProgress) -> bytes:
    shared = context.shard.handover_writes
    with shared.applying(context.namespace.id):
        shared.check_stays(await shared_namespace(context, request))
        return encode_answer(await apply_progress(context, request))


async def _restore_batch(context: OperationContext, request: ReplicatedBatch) -> bytes:
    await shared_namespace(context, request)
    return encode(await restore_batch(context, request))


async def _dry_run(context: OperationContext, request: DryRunRequest) -> bytes:
    return encode(await dry_run(context, request))


OPERATIONS = {
    "ApplyBatch": Operation(ReplicatedBatch, apply_batch),
    "ApplyProgress": Operation(ReplicatedProgress, _apply_progress),
    "RestoreBatch": Operation(ReplicatedBatch, _restore_batch),
    "DryRun": Operation(DryRunRequest, _dry_run),
}
