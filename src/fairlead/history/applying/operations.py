"""What the history service is asked for by those who bring other clusters' histories."""

from fairlead.history.applying.batches import apply_batch
from fairlead.history.applying.messages import ReplicatedBatch, ReplicatedProgress, encode_answer
from fairlead.history.applying.progress import apply_progress
from fairlead.history.applying.restoring import ForeseeRequest, encode, foresee, restore_batch
from fairlead.history.scope import Operation, Scope


async def _apply_batch(scope: Scope, request: ReplicatedBatch) -> bytes:
    return encode_answer(await apply_batch(scope, request))


async def _apply_progress(scope: Scope, request: ReplicatedProgress) -> bytes:
    shared = scope.shard.shared
    with shared.applying(scope.namespace.id):
        shared.check_stays(scope.namespace)
        return encode_answer(await apply_progress(scope, request))


async def _restore_batch(scope: Scope, request: ReplicatedBatch) -> bytes:
    return encode(await restore_batch(scope, request))


async def _foresee(scope: Scope, request: ForeseeRequest) -> bytes:
    return encode(await foresee(scope, request))


OPERATIONS = {
    "ApplyBatch": Operation(ReplicatedBatch, _apply_batch),
    "ApplyProgress": Operation(ReplicatedProgress, _apply_progress),
    "RestoreBatch": Operation(ReplicatedBatch, _restore_batch),
    "Foresee": Operation(ForeseeRequest, _foresee),
}
