"""ResetWorkflowExecution: continues a workflow from an earlier point, in a new run that shares the events before it."""

from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.enums.v1 import ResetReapplyExcludeType, ResetReapplyType, WorkflowExecutionStatus
from temporalio.api.history.v1 import History, HistoryEvent, WorkflowExecutionOptionsUpdatedEventAttributes
from temporalio.api.workflow.v1 import PostResetOperation
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest, ResetWorkflowExecutionResponse

from fairlead.api.errors import FailedPrecondition, InvalidArgument, NotFound
from fairlead.api.worker_versions import in_new_form
from fairlead.history.events import Batch, Transaction, apply
from fairlead.history.events.write_reset import begin_reset, finish_reset, reapply, terminate_for_reset
from fairlead.history.ndc.branches import branches_of
from fairlead.history.shard.commit import Step
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import RunIdentity, RunState, decode, encode
from fairlead.storage.commit import BranchWrite, IsRun
from fairlead.storage.history import RunKey

# Number of runs in a chain whose signals and updates are reapplied; the events of each run are read.
CHAIN_MAX = 1_000

_CONTINUED = int(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW)
_EXCLUDED: dict[ResetReapplyType.ValueType, tuple[ResetReapplyExcludeType.ValueType, ...]] = {
    ResetReapplyType.RESET_REAPPLY_TYPE_SIGNAL: (ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,),
    ResetReapplyType.RESET_REAPPLY_TYPE_NONE: (
        ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
        ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
    ),
}
_ALL_TYPES = frozenset(ResetReapplyExcludeType.values()) - {
    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UNSPECIFIED
}


class Fork(NamedTuple):
    """A new run that begins with the events of another run, with the transaction and the branches to write."""

    run: LoadedRun
    transaction: Transaction
    branches: tuple[BranchWrite, ...]


class _ReapplyPlan(NamedTuple):
    """The events to reapply: their source and the excluded types. `ending` is the step that closes the current run."""

    base: LoadedRun
    finish_event_id: int
    excluded: frozenset[ResetReapplyExcludeType.ValueType]
    current: LoadedRun
    ending: Transaction | None


async def reset(context: OperationContext, request: ResetWorkflowExecutionRequest) -> Message:
    """Reset a workflow to one of its workflow tasks; the current run, if open, is terminated."""
    shard, execution = context.shard, request.workflow_execution
    async with shard.lock(context.namespace.id, execution.workflow_id):
        base = await shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
        finish_event_id = request.workflow_task_finish_event_id
        if not 1 < finish_event_id < base.state.next_event_id:
            raise InvalidArgument("Workflow task finish ID must be > 1 && <= workflow last event ID.")
        _check_afterwards(request.post_reset_operations)
        present = await shard.current_runs.find(context.namespace.id, execution.workflow_id)
        if present is None:
            raise InvalidArgument(f"workflow not found for ID: {execution.workflow_id}")
        if request.request_id and present.request_id == request.request_id:
            return ResetWorkflowExecutionResponse(run_id=present.run_id)
        fork = await _fork(context, base, finish_event_id)
        begin_reset(fork.transaction, base_run_id=base.key.run_id, reason=request.reason)
        current = base if present.run_id == base.key.run_id else await shard.load(*RunKey.of(present))
        ending = None
        if current.state.is_open:
            # Work on a copy: if the reset fails, the current run continues unchanged.
            ending = shard.transaction(context.namespace, decode(encode(current.state)))
            terminate_for_reset(ending, reason=request.reason)
        plan = _ReapplyPlan(base, finish_event_id, _excluded(request), current, ending)
        await _reapply(context, fork.transaction, plan)
        _do_afterwards(fork.transaction, request.post_reset_operations)
        finish_reset(fork.transaction)
        live = fork.transaction.state.live
        live.last_reset_ns = fork.transaction.now_ns
        live.original_started_ns = base.state.live.original_started_ns or base.state.started.started_ns
        live.start_request_id = base.state.live.start_request_id
        steps = [] if ending is None else [Step(current, ending)]
        if not steps or current is not base:
            steps.append(Step(base, shard.transaction(context.namespace, decode(encode(base.state)))))
        # The last step belongs to the base run.
        steps[-1].transaction.state.live.reset_run_id = fork.run.key.run_id
        await shard.writer.write(
            context.namespace,
            [*steps, Step(fork.run, fork.transaction)],
            condition=IsRun(current.key.run_id),
            request_id=request.request_id,
            branches=fork.branches,
        )
        return ResetWorkflowExecutionResponse(run_id=fork.run.key.run_id)


async def _fork(context: OperationContext, base: LoadedRun, finish_event_id: int) -> Fork:
    """The fork: a new run with the base run's state before an event.

    The new run shares the base run's batches up to the event; if a batch goes beyond the event, its first events are
    copied. If the base run itself shares batches of other runs, all events are copied, because only the store knows
    these other runs.
    """
    shard, state, run_id = context.shard, base.state, context.services.new_id()
    is_own = state.identity.tree_id == state.identity.run_id
    tree_id = state.identity.tree_id if is_own else run_id
    identity = RunIdentity(*base.key.workflow, run_id, tree_id, context.services.new_id())
    forked = RunState(identity)
    shared_to, copied = 1, list[HistoryEvent]()
    async for batch in _batches(context, state, 1, finish_event_id):
        is_cut = batch.last_event_id >= finish_event_id
        for event in History.FromString(batch.payload).events:
            if event.event_id < finish_event_id:
                apply(forked, event)
                if is_cut or not is_own:
                    copied.append(event)
        if is_cut:
            _check_cut(forked, finish_event_id)
        elif is_own:
            shared_to = batch.last_event_id + 1
            forked.live.history_size_bytes += len(batch.payload)
    transaction = shard.transaction(context.namespace, forked)
    transaction.events.extend(copied)
    run = LoadedRun(RunKey(*base.key.workflow, run_id), forked, None)
    ancestors = branches_of(state)[0].ancestors_before(shared_to) if shared_to > 1 else ()
    forked.live.ancestors = [(ancestor.branch_id, ancestor.end_event_id) for ancestor in ancestors]
    branches = (BranchWrite(tree_id, identity.branch_id, ancestors),) if ancestors else ()
    return Fork(run, transaction, branches)


def _check_cut(forked: RunState, finish_event_id: int) -> None:
    """Within one batch, the only valid reset point is the start of a transient or speculative workflow task."""
    if not (forked.task is not None and forked.task.started_event_id == finish_event_id - 1):
        raise InvalidArgument(
            f"StateRebuilder unable to Rebuild mutable state to event ID: {finish_event_id - 1}, "
            f"version: {forked.last_version}, this event must be at the boundary"
        )


async def _reapply(context: OperationContext, transaction: Transaction, plan: _ReapplyPlan) -> None:
    """Reapply the events after the reset point, from the base run and from the later runs of its chain."""
    if plan.excluded >= _ALL_TYPES:
        return
    run, from_event_id = plan.base, plan.finish_event_id
    for _ in range(CHAIN_MAX):
        is_base = run is plan.base
        async for batch in _batches(context, run.state, from_event_id, run.state.next_event_id):
            events = [each for each in History.FromString(batch.payload).events if each.event_id >= from_event_id]
            reapply(transaction, events, excluded=plan.excluded, is_base=is_base)
        if run is plan.current and plan.ending is not None:
            # The events of the step that closes the current run are not stored yet.
            reapply(transaction, plan.ending.events, excluded=plan.excluded, is_base=is_base)
        if run.state.status != _CONTINUED:
            return
        try:
            run = await context.shard.load(*run.key.workflow, run.state.new_run_id)
        except NotFound:
            return
        from_event_id = 1
    raise FailedPrecondition(
        f"the workflow has continued as new more than {CHAIN_MAX} times after this run: reset a later run"
    )


async def _batches(
    context: OperationContext, state: RunState, from_event_id: int, to_event_id: int
) -> AsyncIterator[Batch]:
    """The batches with the events of a half-open range, page by page."""
    while from_event_id < to_event_id:
        batches = await context.shard.events.read_batches(state, from_event_id, to_event_id)
        if not batches:
            return
        for batch in batches:
            yield batch
        from_event_id = batches[-1].last_event_id + 1


def _excluded(request: ResetWorkflowExecutionRequest) -> frozenset[ResetReapplyExcludeType.ValueType]:
    return frozenset(request.reset_reapply_exclude_types) | frozenset(_EXCLUDED.get(request.reset_reapply_type, ()))


def _check_afterwards(operations: Collection[PostResetOperation]) -> None:
    for operation in operations:
        kind = operation.WhichOneof("variant")
        if kind != "update_workflow_options":
            name = "".join(word.capitalize() for word in (kind or "").split("_"))
            raise InvalidArgument(f"unsupported post reset operation: *workflow.PostResetOperation_{name}_")


def _do_afterwards(transaction: Transaction, operations: Collection[PostResetOperation]) -> None:
    for operation in operations:
        wanted = operation.update_workflow_options
        options, paths = wanted.workflow_execution_options, set(wanted.update_mask.paths)
        attributes = WorkflowExecutionOptionsUpdatedEventAttributes()
        if "versioning_override" in paths and options.HasField("versioning_override"):
            attributes.versioning_override.CopyFrom(in_new_form(options.versioning_override))
        elif "versioning_override" in paths:
            attributes.unset_versioning_override = True
        if "priority" in paths:
            attributes.priority.CopyFrom(options.priority)
        transaction.add(attributes)
        transaction.flush()


OPERATIONS = {"ResetWorkflowExecution": Operation(ResetWorkflowExecutionRequest, reset)}
