"""Says in one sentence what holds the tasks of a task queue back, and what to do about it."""

from collections.abc import Mapping
from enum import StrEnum
from math import inf

from msgspec import Struct

from fairlead.console.text import duration, number, plural

# Minimum share of a rate limit that the dispatch rate must reach for the limit to be the reason.
LIMIT_SHARE_MIN = 0.8
# Seconds without a poll after which workers may be gone: longer than a long poll of the SDKs.
POLLED_S_MAX = 75.0


class Cause(StrEnum):
    """Causes for which tasks wait."""

    NOTHING = "nothing"
    HANDOVER = "hand-over"
    NO_WORKERS = "no workers"
    RATE_LIMIT = "rate limit"
    KEY_LIMIT = "key limit"
    RUNNING_LIMIT = "limit on running activities"
    PARTITION_WITHOUT_POLLS = "partition without polls"
    STORE = "store"
    BUSY_WORKERS = "busy workers"
    SILENT_WORKERS = "silent workers"
    UNKNOWN = "not known yet"


class PartitionFacts(Struct, frozen=True, kw_only=True):
    """One partition that answered."""

    backlog: int
    loaded: int
    polls: int


class QueueFacts(Struct, frozen=True, kw_only=True):
    """The state of a task queue. `polled_s_ago` is None if no worker has polled in the last minutes.

    `rate_source` is a sentence such as "set by a worker". `version` is the worker version of the task queue, if any.
    """

    name: str
    version: str = ""
    partitions: Mapping[int, PartitionFacts]
    # Partitions that did not answer, with the reason.
    missing: Mapping[int, str] = {}
    pollers: int = 0
    polled_s_ago: float | None = None
    oldest_s: float = 0.0
    dispatches_per_s: float = 0.0
    rate_per_s: float = inf
    rate_source: str = ""
    # Rate limit of a fairness key of weight 1.
    key_rate_per_s: float | None = None
    key_rate_source: str = ""
    keys_waiting: int = 0
    # Running activities of the task queue, and of the keys at their limit; only known if there is a limit.
    running: int = 0
    running_max: int = 0
    key_running_max: int = 0
    keys_at_limit: list[str] = []

    @property
    def backlog(self) -> int:
        """Number of tasks that wait."""
        return sum(one.backlog for one in self.partitions.values())

    @property
    def polls(self) -> int:
        """Number of polls that wait."""
        return sum(one.polls for one in self.partitions.values())


class Held(Struct, frozen=True, kw_only=True):
    """The cause in a few words, as a sentence, and the next step."""

    cause: Cause
    sentence: str
    advice: str = ""


def held_back(facts: QueueFacts) -> Held:
    """Return the reason why the tasks of a task queue wait now."""
    if facts.missing:
        return _handover(facts)
    if not facts.backlog:
        return Held(cause=Cause.NOTHING, sentence="Nothing waits.")
    if not facts.polls and not facts.pollers:
        return _no_workers(facts)
    return _rate_limit(facts) or _running_limit(facts) or _polls_elsewhere(facts) or _busy(facts)


def _handover(facts: QueueFacts) -> Held:
    numbers = sorted(facts.missing)
    named = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    which = f"Partition {named} does" if len(numbers) == 1 else f"Partitions {named} do"
    return Held(
        cause=Cause.HANDOVER,
        sentence=f"{which} not answer: {facts.missing[numbers[0]]}",
        advice="Another host takes over within seconds. If this stays, see the ring: a host may be unable to reach "
        "the database.",
    )


def _no_workers(facts: QueueFacts) -> Held:
    of_version = f" of version {facts.version}" if facts.version else ""
    return Held(
        cause=Cause.NO_WORKERS,
        sentence=f"No worker{of_version} has polled in the last five minutes; {plural(facts.backlog, 'task')} "
        f"{'waits' if facts.backlog == 1 else 'wait'}, the oldest for {duration(facts.oldest_s)}.",
        advice=f"Start a worker{of_version} for the task queue {facts.name}. If one runs, compare its task queue and "
        "namespace letter by letter.",
    )


def _rate_limit(facts: QueueFacts) -> Held | None:
    if facts.rate_per_s == 0:
        return Held(
            cause=Cause.RATE_LIMIT,
            sentence=f"The rate limit is 0: nothing is dispatched ({facts.rate_source}).",
            advice="Raise or remove the limit.",
        )
    if facts.rate_per_s < inf and facts.dispatches_per_s >= LIMIT_SHARE_MIN * facts.rate_per_s:
        return Held(
            cause=Cause.RATE_LIMIT,
            sentence=f"The rate limit of {number(facts.rate_per_s)} tasks per second is reached ({facts.rate_source}).",
            advice="Raise or remove the limit if the workers can do more.",
        )
    if facts.key_rate_per_s is not None and facts.keys_waiting and facts.polls:
        return Held(
            cause=Cause.KEY_LIMIT,
            sentence=f"{plural(facts.keys_waiting, 'fairness key')} {'waits' if facts.keys_waiting == 1 else 'wait'} "
            f"for the limit of {number(facts.key_rate_per_s)} tasks per second for each key of weight 1, while polls "
            f"wait ({facts.key_rate_source}).",
            advice="Raise the limit of a key, or give the key a higher weight.",
        )
    return None


def _running_limit(facts: QueueFacts) -> Held | None:
    if facts.running_max and facts.running >= facts.running_max:
        return Held(
            cause=Cause.RUNNING_LIMIT,
            sentence=f"{facts.running} activities of this task queue run, as many as "
            "matching.taskQueueConcurrency allows.",
            advice="Raise the setting if the workers can do more, or wait until one ends.",
        )
    if facts.key_running_max and facts.keys_at_limit and facts.polls:
        named = ", ".join(facts.keys_at_limit[:3]) + (", ..." if len(facts.keys_at_limit) > 3 else "")
        return Held(
            cause=Cause.RUNNING_LIMIT,
            sentence=f"The fairness keys {named} run {facts.key_running_max} activities each, as many as "
            "matching.fairnessKeyConcurrency allows.",
            advice="Raise the setting, or wait until one of their activities ends.",
        )
    return None


def _polls_elsewhere(facts: QueueFacts) -> Held | None:
    if not facts.polls:
        return None
    without = sorted(number for number, one in facts.partitions.items() if one.backlog and not one.polls)
    if without:
        named = ", ".join(map(str, without[:5])) + (", ..." if len(without) > 5 else "")
        return Held(
            cause=Cause.PARTITION_WITHOUT_POLLS,
            sentence=f"Tasks wait in {'partition' if len(without) == 1 else 'partitions'} {named}, where no poll "
            f"waits; {plural(facts.polls, 'poll')} {'waits' if facts.polls == 1 else 'wait'} at others.",
            advice="Forwarding brings them together. If this stays, use fewer partitions, or more pollers.",
        )
    if any(one.backlog > one.loaded == 0 for one in facts.partitions.values()):
        return Held(
            cause=Cause.STORE,
            sentence="Polls wait, and stored tasks are not loaded: the store is slow, or does not answer.",
            advice="Check the store's latency and the server's log.",
        )
    return None


def _busy(facts: QueueFacts) -> Held:
    workers = plural(facts.pollers, "worker")
    if facts.polls:
        return Held(
            cause=Cause.NOTHING,
            sentence=f"Tasks are being matched: {plural(facts.polls, 'poll')} waiting, {workers}.",
        )
    if facts.polled_s_ago is not None and facts.polled_s_ago > POLLED_S_MAX:
        return Held(
            cause=Cause.SILENT_WORKERS,
            sentence=f"The last poll was {duration(facts.polled_s_ago)} ago: the workers have stopped, or all their "
            "slots are in use.",
            advice="Look whether the workers still run. If they do, add workers, or raise their number of concurrent "
            "tasks.",
        )
    return Held(
        cause=Cause.BUSY_WORKERS,
        sentence=f"{workers} {'polls here, and all its' if facts.pollers == 1 else 'poll here, and all their'} slots "
        f"are in use: {number(facts.dispatches_per_s)} tasks per second are dispatched.",
        advice="Add workers, or raise their number of concurrent tasks.",
    )
