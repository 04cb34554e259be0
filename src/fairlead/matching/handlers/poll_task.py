"""Polls a partition for a task."""

import asyncio
from sys import intern

from fairlead.matching.forwarding.idle_polls import SENT_DOWN_WAIT_S
from fairlead.matching.messages import PollRequest, PollResponse
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.partition.matched_task import MatchedTask
from fairlead.matching.partition.task_validation import InvalidPoll
from fairlead.matching.partition.waiting_poll import WaitingPoll
from fairlead.settings.dynamic import matching


async def poll_task(manager: PartitionManager, request: PollRequest) -> PollResponse:
    """Wait for a task; a task that is returned was started for this poll."""
    if request.config is not None and request.config.version > manager.configs.config.version:
        await manager.catch_up(request.config)
    queue, dependencies = manager.queue, manager.dependencies
    began_s = dependencies.polled_s = asyncio.get_running_loop().time()
    deadline_s = began_s + _begin(manager, request)
    may_redirect = manager.is_normal and not request.is_sent_down
    is_from_child = request.forwarded_from is not None
    answer: PollResponse | None = None
    try:
        while answer is None and not dependencies.is_closing:
            poll = WaitingPoll(request.identity, request.poll_id, request.worker, may_redirect=may_redirect)
            is_watched = may_redirect and (is_from_child or manager.redirects_polls)
            if is_watched and not manager.idle_polls.begin(poll, is_from_child=is_from_child):
                break
            try:
                got = await queue.dispatcher.wait(poll, deadline_s)
            finally:
                if is_from_child:
                    manager.idle_polls.end(poll)
            if got is None:
                break
            if isinstance(got, MatchedTask):
                started = await queue.start(got, request.identity, request.worker)
                if started is not None:
                    answer = _started(manager, request, got, started)
            else:
                answer = await manager.idle_polls.poll_target(got, request, deadline_s)
    except asyncio.CancelledError:
        manager.counts.poll_cancelled += 1
        raise
    return _end(manager, request, answer, began_s)


def lean_request(manager: PartitionManager, request: PollRequest) -> PollRequest:
    """Reuse objects that the partition holds, to save memory: the request lives as long as the poll waits."""
    known = manager.configs.config
    return PollRequest(
        manager.partition_id,
        intern(request.identity),
        request.poll_id,
        request.timeout_s,
        request.kind,
        known if request.config == known else request.config,
        request.rate_per_s,
        request.forwarded_from,
        request.is_sent_down,
        request.worker,
    )


def _begin(manager: PartitionManager, request: PollRequest) -> float:
    """Check a poll and record it; return the seconds that it may wait here."""
    if not request.timeout_s > 0:
        raise InvalidPoll(f"poll of {request.identity!r} has a timeout of {request.timeout_s} s: give more than 0")
    timeout_s = min(request.timeout_s, manager.dependencies.get(matching.LONG_POLL_EXPIRATION_INTERVAL))
    configs = manager.configs
    limits = configs.limits
    is_changed = request.rate_per_s is not None and limits.note_worker(request.identity, request.rate_per_s)
    if is_changed or limits.has_expired:
        configs.limit_rates()
    if request.is_sent_down or request.forwarded_from is not None:
        manager.counts.forwarded += 1
        if request.is_sent_down:
            timeout_s = min(timeout_s, SENT_DOWN_WAIT_S if manager.queue.backlog.priorities.tasks else 0.0)
        return timeout_s
    if manager.number >= configs.config.read:
        raise configs.stale("read")
    manager.queue.pollers.note(request.identity, request.rate_per_s, request.worker)
    return timeout_s


def _end(manager: PartitionManager, request: PollRequest, answer: PollResponse | None, began_s: float) -> PollResponse:
    """Record how a poll has ended, and build its response."""
    counts, config = manager.counts, manager.configs.config
    waited_s = asyncio.get_running_loop().time() - began_s
    counts.poll_latency.observe(waited_s)
    if answer is None:
        counts.poll_timeouts += 1
        # The partition that forwarded the poll records it in its own journal.
        if manager.journal is not None and not request.is_sent_down and request.forwarded_from is None:
            manager.journal.poll_empty(manager.clock(), waited_s)
        return PollResponse(None, config, manager.reports.current())
    counts.poll_success += 1
    if answer.report.partition != manager.number:
        # The task comes from another partition, but the response needs this partition's configuration and report.
        return PollResponse(answer.task, config, manager.reports.current(), answer.was_backlog, was_forwarded=True)
    return answer


def _started(manager: PartitionManager, request: PollRequest, matched: MatchedTask, response: bytes) -> PollResponse:
    """Record that a task was started for a poll, and build the poll's response."""
    counts = manager.counts
    is_backlog, is_remote_task = matched.is_backlog, not matched.is_charged and not matched.is_query
    is_remote_poll = request.is_sent_down or request.forwarded_from is not None
    now_s = manager.clock()
    waited_s = max(0.0, now_s - matched.created_s)
    # The journal has no record of added query tasks either.
    if manager.journal is not None and not matched.is_query:
        manager.journal.matched(
            now_s,
            matched.fairness_key,
            matched.weight,
            matched.priority,
            None if matched.held is None else matched.held.position.level.pass_number,
            not is_backlog,
            is_remote_task or is_remote_poll,
            waited_s,
        )
    if is_backlog:
        counts.backlog_matches += 1
        counts.asyncmatch_latency.observe(waited_s)
    else:
        counts.sync_matches += 1
        counts.poll_success_sync += 1
        counts.syncmatch_latency.observe(waited_s)
    if is_remote_task:
        counts.remote_to_remote_matches += is_remote_poll
        counts.remote_to_local_matches += not is_remote_poll
    else:
        counts.local_to_remote_matches += is_remote_poll
        counts.local_to_local_matches += not is_remote_poll
    return PollResponse(
        response, manager.configs.config, manager.reports.current(), is_backlog, is_remote_task or is_remote_poll
    )
