"""Why a workflow is stuck: a pure decision over collected facts, in plain sentences with their evidence."""

import math
from collections.abc import Iterator
from typing import Final

from msgspec import structs

from fairlead.console import text
from fairlead.console.findings import CALM, ORDER, Cause, Finding, evidence_of, grouped
from fairlead.console.stuck_facts import Facts, NexusFacts, Poller, QueueFacts, TaskFacts

# Seconds without a poll after which a worker counts as gone: longer than a long poll of the SDKs.
POLLER_GONE_S: Final = 75.0
# Seconds for which a scheduled task is not suspicious.
FRESH_S: Final = 2.0
# Share of a rate limit above which the limit holds tasks back.
LIMIT_SHARE: Final = 0.8
# Share of a heartbeat timeout without a heartbeat after which a worker seems to hang.
HEARTBEAT_SHARE: Final = 0.6
# Seconds after which an activity without a heartbeat timeout is worth a look.
LONG_RUN_S: Final = 60.0
# Words of SDKs for a workflow or activity type that the worker does not have.
_UNKNOWN_TYPE: Final = ("not registered", "no registered", "unable to find", "not found on this worker")


def diagnose(facts: Facts) -> list[Finding]:
    """All reasons, the most important first; there is always one."""
    found = [*_findings(facts)]
    ordered = sorted(found, key=lambda one: (ORDER[one.cause], one.since_s or 0.0, one.position or math.inf))
    return grouped(ordered) or [_waits_for_signal(facts)]


def _findings(facts: Facts) -> Iterator[Finding]:
    if not facts.is_open:
        yield _finding(
            Cause.CLOSED,
            f"The workflow is not stuck: it is closed ({facts.status}).",
            "No action is needed. To run it again, reset it or start a new one.",
            since_s=facts.last_event_s,
        )
        return
    if facts.missing_activity:
        yield _finding(
            Cause.ACTIVITY_NOT_PENDING,
            f"The workflow has no pending activity {facts.missing_activity}: it has ended, or there was none.",
            "Look at the whole workflow: the link is above.",
            since_s=facts.last_event_s,
        )
        return
    if facts.pause_reason:
        by = f" by {facts.paused_by}" if facts.paused_by else ""
        yield _finding(
            Cause.PAUSED,
            f"The workflow is paused{by}: {facts.pause_reason}.",
            "Unpause it, on the page of the workflow, when the reason is gone.",
            since_s=facts.paused_s,
        )
    for task in facts.tasks:
        yield of_task(task, facts.now_s)
    for operation in facts.nexus:
        yield _of_nexus(operation)
    if facts.tasks or facts.nexus:
        return
    if facts.timers:
        timer, fires_s = min(facts.timers.items(), key=lambda one: one[1])
        others = text.plural(len(facts.timers) - 1, "other timer fires", "others fire") + " later"
        others = f"; {others}" if len(facts.timers) > 1 else ""
        yield _finding(
            Cause.WAITS_FOR_TIMER,
            f"The workflow waits for its timer {timer}, which fires in {text.duration(max(0.0, fires_s - facts.now_s))}"
            + (
                f"; {text.plural(len(facts.timers) - 1, 'other timer fires', 'others fire')} later."
                if len(facts.timers) > 1
                else "."
            ),
            "No action is needed. If the time is wrong, reset the workflow.",
            since_s=facts.last_event_s,
            until_s=fires_s,
        )
    if facts.children:
        names = ", ".join(f"{name} ({kind})" for name, kind in facts.children[:3])
        more = f" and {len(facts.children) - 3} more" if len(facts.children) > 3 else ""
        yield _finding(
            Cause.WAITS_FOR_CHILD,
            f"The workflow waits for {text.plural(len(facts.children), 'child', 'children')}: {names}{more}.",
            "Look at why the child is stuck.",
            since_s=facts.last_event_s,
        )


def of_task(task: TaskFacts, now_s: float) -> Finding:
    """The reason why a pending task is not done yet."""
    if task.state == "paused":
        return _of(
            task,
            Cause.ACTIVITY_PAUSED,
            f"{task.label} is paused: it is not tried until it is unpaused.",
            "Unpause it on the page of the workflow.",
        )
    if task.failure and any(words in task.failure.lower() for words in _UNKNOWN_TYPE):
        return _of(
            task,
            Cause.NO_WORKER_OF_TYPE,
            f"The workers of task queue {_queue_name(task)} don't know the type {task.name}: {task.failure}.",
            "Deploy workers that register this type, or start the workflow on another task queue.",
        )
    if not task.is_activity and task.attempt > 1:
        why = f": {task.failure}" if task.failure else ", by a timeout: its worker does not answer"
        return _of(
            task,
            Cause.TASK_FAILING,
            f"The workflow task fails again and again (attempt {task.attempt}){why}.",
            "Mend the workflow's code and deploy it: the task is tried again by itself. If the code was changed while "
            "the workflow ran, deploy the old code, or reset the workflow to an earlier event.",
        )
    if task.state == "started":
        return _of_started(task, now_s)
    if task.next_s is not None and task.next_s > now_s and task.attempt > 1:
        failure = f" It failed with: {task.failure}." if task.failure else ""
        limit = f" of {task.attempts_max}" if task.attempts_max else ""
        return _of(
            task,
            Cause.BACKING_OFF,
            f"{task.label} failed, and waits for attempt {task.attempt}{limit} "
            f"in {text.duration(task.next_s - now_s)}.{failure}",
            "Mend what the failure names, then wait, or retry it now on the page of the workflow.",
            until_s=task.next_s,
        )
    return _of_scheduled(task, now_s)


def _of_started(task: TaskFacts, now_s: float) -> Finding:
    at = f" on {task.worker}" if task.worker else ""
    started_s = task.started_s or task.since_s or now_s
    if not task.is_activity:
        return _of(
            task,
            Cause.TASK_HANGS if now_s - started_s > FRESH_S else Cause.DISPATCHING,
            f"A worker{at} has had the workflow task for {text.duration(now_s - started_s)}, and has not answered.",
            "If it does not answer before the task's timeout, another worker gets the task. Look at the worker's log: "
            "blocking code in a workflow, or a worker that was killed, are the usual reasons.",
            since_s=started_s,
        )
    last_s = task.heartbeat_s or started_s
    if task.heartbeat_timeout_s and now_s - last_s > HEARTBEAT_SHARE * task.heartbeat_timeout_s:
        return _of(
            task,
            Cause.NO_HEARTBEAT,
            f"{task.label} was started{at}, but sends no heartbeat: the last sign of life was "
            f"{text.duration(now_s - last_s)} ago, and the timeout is {text.duration(task.heartbeat_timeout_s)}.",
            "Look at this worker: it may hang, or have been killed. After the timeout, another one gets the activity.",
            since_s=last_s,
            until_s=last_s + task.heartbeat_timeout_s,
        )
    attempt = f", attempt {task.attempt}" if task.attempt > 1 else ""
    beat = f" Its last heartbeat was {text.duration(now_s - task.heartbeat_s)} ago." if task.heartbeat_s else ""
    advice = (
        "No action is needed while it works."
        if task.heartbeat_timeout_s or now_s - started_s < LONG_RUN_S
        else "It has no heartbeat timeout: the server notices a killed worker only at the activity's own timeout. "
        "Look at the worker, and give the activity a heartbeat timeout."
    )
    sentence = f"{task.label} has been running{at} for {text.duration(now_s - started_s)}{attempt}.{beat}"
    return _of(task, Cause.RUNNING, sentence, advice, since_s=started_s, until_s=task.deadline_s)


def _of_scheduled(task: TaskFacts, now_s: float) -> Finding:
    queue = task.queue
    if queue is None or queue.problem:
        why = queue.problem if queue is not None else "it has no name"
        return _of(
            task,
            Cause.QUEUE_UNKNOWN,
            f"{task.label} waits in task queue {_queue_name(task)}, which can't be read: {why}",
            "Sign in with a role that may read the task queue."
            if queue is None or queue.is_forbidden
            else "Wait a moment, then reload. If it stays, see the ring: another host takes over within seconds.",
        )
    present = [one for one in queue.pollers if now_s - one.seen_s <= POLLER_GONE_S]
    waits = f"{task.label} waits in task queue {queue.name}"
    for check in (_without_worker, _held_by_limit, _held_by_running, _without_polls):
        finding = check(task, queue, present, waits)
        if finding is not None:
            return finding
    return _of(
        task,
        Cause.DISPATCHING,
        f"{waits}, which workers poll: it should be dispatched at once.",
        "Reload in a moment. If it stays, look at the server's log for errors of the store.",
    )


def _without_worker(task: TaskFacts, queue: QueueFacts, present: list[Poller], waits: str) -> Finding | None:
    if task.is_sticky and not present:
        return _of(
            task,
            Cause.STICKY_GONE,
            "The workflow task waits for the worker that has the workflow in its cache, but that worker is gone.",
            "Wait: after the sticky timeout (10 s by default) the task goes to all workers of the task queue.",
        )
    if task.version and not any(one.version == task.version for one in present):
        others = sorted({one.version or "unversioned" for one in present})
        polls = f"those that poll have {', '.join(others)}" if others else "no worker polls at all"
        return _of(
            task,
            Cause.NO_WORKER_OF_VERSION,
            f"{waits} for a worker of version {task.version}, and there is none: {polls}.",
            "Start workers of this version, or move the workflow to another version "
            "(temporal workflow update-options --versioning-override-behavior).",
        )
    if not present:
        last = max((one.seen_s for one in queue.pollers), default=None)
        gone = "" if last is None else f"; the last one was {max(queue.pollers, key=lambda one: one.seen_s).identity}"
        kind = "activities" if task.is_activity else "workflows"
        return _of(
            task,
            Cause.NO_WORKER,
            f"{waits}, and no worker polls it for {kind}{gone}.",
            f"Start a worker for task queue {queue.name}, and check its namespace and the spelling of the name.",
        )
    return None


def _held_by_limit(task: TaskFacts, queue: QueueFacts, _: list[Poller], waits: str) -> Finding | None:
    if queue.rate_per_s is not None and queue.dispatches_per_s >= LIMIT_SHARE * queue.rate_per_s:
        return _of(
            task,
            Cause.RATE_LIMIT,
            f"{waits}, whose rate limit of {text.number(queue.rate_per_s)} tasks per second is reached.",
            f"Raise or remove the limit, which was {queue.rate_source}.",
        )
    if queue.key_rate_per_s is not None and queue.key_waiting > 0 and (queue.polls or not queue.key_rate_per_s):
        key = f"fairness key {queue.key!r}" if queue.key else "tasks without a fairness key"
        return _of(
            task,
            Cause.KEY_LIMIT,
            f"{waits}, and {key} may have {text.number(queue.key_rate_per_s * queue.key_weight)} tasks per second: "
            f"{text.plural(queue.key_waiting, 'task of it waits', 'tasks of it wait')}.",
            "Raise the limit of fairness keys, or the weight of this key.",
        )
    return None


def _held_by_running(task: TaskFacts, queue: QueueFacts, _: list[Poller], waits: str) -> Finding | None:
    if queue.running_max and queue.running >= queue.running_max:
        return _of(
            task,
            Cause.RUNNING_LIMIT,
            f"{waits}, of which {text.plural(queue.running, 'activity runs', 'activities run')} now: as many as "
            "matching.taskQueueConcurrency allows.",
            "Wait until one ends, or raise the setting if the workers can do more.",
        )
    if queue.key_running_max and queue.key_running >= queue.key_running_max:
        key = f"fairness key {queue.key!r}" if queue.key else "the tasks without a fairness key"
        return _of(
            task,
            Cause.KEY_RUNNING_LIMIT,
            f"{waits}, and {text.plural(queue.key_running, 'activity', 'activities')} of {key} "
            f"{'runs' if queue.key_running == 1 else 'run'} now: as many as matching.fairnessKeyConcurrency allows.",
            "Wait until one of them ends, or raise the setting.",
        )
    return None


def _without_polls(task: TaskFacts, queue: QueueFacts, present: list[Poller], waits: str) -> Finding | None:
    polled = [one.number for one in queue.partitions if one.polls]
    holding = [one for one in queue.partitions if one.backlog and not one.polls]
    place = "" if queue.position is None else f" at position {queue.position}"
    if polled and holding and queue.partition not in polled:
        numbers = ", ".join(str(one.number) for one in holding[:5])
        return _of(
            task,
            Cause.PARTITION_WITHOUT_POLLS,
            f"{waits}{place}, in a partition without a waiting poll ({numbers}), while partition {polled[0]} has some.",
            "Wait: polls are forwarded to the oldest backlog. If it stays, there are more partitions than pollers: "
            "lower the number of partitions, or let workers poll more.",
        )
    if queue.polls == 0 or (queue.polls is None and queue.backlog):
        ahead = f" behind {text.plural(queue.position - 1, 'task')}" if queue.position else ""
        oldest = f", the oldest for {text.duration(queue.oldest_s)}" if queue.oldest_s else ""
        return _of(
            task,
            Cause.WORKERS_BUSY,
            f"{waits}{ahead}: {text.plural(len(present), 'worker serves', 'workers serve')} it, "
            "but none has a free slot; "
            f"{text.plural(max(queue.backlog, 1), 'task waits', 'tasks wait')}{oldest}.",
            "Start more workers, or give them more slots (max_concurrent_activities, max_concurrent_workflow_tasks).",
        )
    return None


def _of_nexus(operation: NexusFacts) -> Finding:
    why = operation.blocked_reason or operation.failure
    return _finding(
        Cause.NEXUS,
        f"Nexus operation {operation.name} is {operation.state}"
        + (f", attempt {operation.attempt}" if operation.attempt > 1 else "")
        + (f": {why}." if why else "."),
        "Look at the workers of the endpoint's task queue, and at the endpoint's address.",
        since_s=operation.since_s,
        until_s=operation.next_s,
    )


def _waits_for_signal(facts: Facts) -> Finding:
    return _finding(
        Cause.WAITS_FOR_SIGNAL,
        "The workflow waits for a signal or an update: it has no pending task, activity, timer or child.",
        "Send the signal that it waits for. Its code tells which one; the query __stack_trace shows the line.",
        since_s=facts.last_event_s,
    )


def _queue_name(task: TaskFacts) -> str:
    return task.queue.name if task.queue is not None else "without a name"


def _of(
    task: TaskFacts,
    cause: Cause,
    sentence: str,
    advice: str,
    *,
    since_s: float | None = None,
    until_s: float | None = None,
) -> Finding:
    found = _finding(
        cause,
        sentence,
        advice,
        since_s=task.since_s if since_s is None else since_s,
        until_s=task.deadline_s if until_s is None else until_s,
        evidence=[*evidence_of(task)],
    )
    queue = task.queue
    if queue is not None:
        found = structs.replace(
            found,
            queue=queue.name,
            queue_type=queue.type,
            fairness_key=queue.key,
            partition=queue.partition,
            position=queue.position,
        )
    return structs.replace(found, activity=task.id, activity_type=task.name) if task.is_activity else found


def _finding(
    cause: Cause,
    sentence: str,
    advice: str,
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    evidence: list[tuple[str, str]] | None = None,
) -> Finding:
    return Finding(
        cause=cause,
        sentence=sentence.replace("..", "."),
        advice=advice,
        since_s=since_s,
        until_s=until_s,
        evidence=evidence or [],
        is_calm=cause in CALM,
    )
