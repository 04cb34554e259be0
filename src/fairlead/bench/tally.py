"""The counts of a run, updated for each task, so that no task can be lost unnoticed."""

from collections import Counter
from typing import NamedTuple

from fairlead.bench.keys import KeyPlan
from fairlead.bench.payload import Stamp
from fairlead.bench.shares import FairShares
from fairlead.bench.timeline import Timeline
from fairlead.bench.waits import Waits
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import AddResponse, PollResponse

# Flags of a task's state.
_ACKNOWLEDGED, _FAILED, _RECEIVED = 1, 2, 4
_STATES_AT_ONCE = 65_536


class ConfigSeen(NamedTuple):
    """A partition configuration, and when a response first had it."""

    at_s: float
    config: PartitionConfig


class Tally:
    """Counts of one run. All times are of the generator's clock; `start_s` is when the load began."""

    def __init__(self, keys: KeyPlan, *, start_s: float) -> None:
        self._states = bytearray()
        self.start_s = start_s
        # When polling began.
        self.polling_since_s: float | None = None
        self.preloaded = 0
        self.sent = 0
        self.acknowledged = 0
        # Acknowledged and not received yet; after all partitions were polled directly, these tasks are lost.
        self.outstanding = 0
        self.started_at_once = 0
        self.started_forwarded = 0
        self.adds_forwarded = 0
        self.received = 0
        self.received_forwarded = 0
        # Tasks received although their add had failed.
        self.received_unacknowledged = 0
        # Tasks received only by polling their partition directly after the load.
        self.swept = 0
        self.duplicates = 0
        # Partitions that could not be polled for outstanding tasks; and whether the run was stopped before the polls.
        self.unasked = 0
        self.is_interrupted = False
        # Tasks of another run, or of another producer on the same task queue.
        self.foreign = 0
        self.polls = 0
        self.polls_empty = 0
        self.add_failures: Counter[str] = Counter()
        self.poll_failures: Counter[str] = Counter()
        self.add_waits = Waits()
        self.poll_waits = Waits()
        self.poll_with_task_waits = Waits()
        self.task_waits = Waits()
        # Time from due to sent: the generator's own share of its tasks' waits.
        self.send_delays = Waits()
        self.shares = FairShares([keys.weight(index) for index in range(keys.count)])
        self.key_received = [0] * keys.count
        self.key_wait_sum_s = [0.0] * keys.count
        self.timeline = Timeline()
        self.configs: list[ConfigSeen] = []
        self.last_answered_s = start_s
        self.last_received_s = start_s

    @property
    def received_later(self) -> int:
        """Tasks that were received, but not by a sync match: they had been stored."""
        # Not counted by the polls' results: if a backlogged task is forwarded, the parent reports it as a new one.
        return self.received - self.started_at_once

    @property
    def lost(self) -> int:
        """Tasks that are outstanding although every partition was polled for them."""
        return 0 if self.unasked or self.is_interrupted else self.outstanding

    @property
    def failed(self) -> int:
        """Adds and polls that failed after the client's retries."""
        return self.add_failures.total() + self.poll_failures.total()

    def since_start_s(self, moment_s: float) -> float:
        """Return the seconds since the load began; 0 for times before, such as those of the first polls."""
        return max(0.0, moment_s - self.start_s)

    def preload(self, stamp: Stamp) -> None:
        """Record a task added before the load: it must be received, but its add is not measured."""
        self._make_room(stamp)
        self._states[stamp.number] |= _ACKNOWLEDGED
        self.preloaded += 1
        self.outstanding += 1
        self.shares.waits(stamp.key)

    def sends(self, stamp: Stamp, *, now_s: float) -> None:
        """Record that a task is being sent; it may be received before the add returns."""
        self._make_room(stamp)
        self.sent += 1
        self.send_delays.add(now_s - stamp.due_s)
        self.shares.waits(stamp.key)

    def added(self, stamp: Stamp, answer: AddResponse, *, sent_s: float, now_s: float) -> None:
        """Record that the server acknowledged a task: it must be received."""
        self._states[stamp.number] |= _ACKNOWLEDGED
        if not self._states[stamp.number] & _RECEIVED:
            self.outstanding += 1
        self.acknowledged += 1
        self.started_at_once += answer.is_started
        self.started_forwarded += answer.is_started and answer.was_forwarded
        self.adds_forwarded += answer.was_forwarded
        self.timeline.at(now_s - self.start_s).adds += 1
        self._answered(sent_s=sent_s, now_s=now_s, config=answer.config)

    def add_failed(self, stamp: Stamp, error: Exception, *, sent_s: float, now_s: float) -> None:
        """Record that an add failed or timed out: the task may be received or not."""
        state = self._states[stamp.number]
        self._states[stamp.number] = state | _FAILED
        if state & _RECEIVED:
            self.received_unacknowledged += 1
        else:
            self.shares.withdrawn(stamp.key)
        self.add_failures[type(error).__name__] += 1
        self._answered(sent_s=sent_s, now_s=now_s, config=None)

    def _make_room(self, stamp: Stamp) -> None:
        while stamp.number >= len(self._states):
            self._states.extend(bytes(_STATES_AT_ONCE))

    def _answered(self, *, sent_s: float, now_s: float, config: PartitionConfig | None) -> None:
        self.add_waits.add(now_s - sent_s)
        self.last_answered_s = now_s
        if config is not None:
            self._note(config, now_s)

    def polled(self, answer: PollResponse, stamp: Stamp | None, *, begun_s: float, now_s: float) -> None:
        """Record a poll's response; `stamp` is the stamp of its task, if the task belongs to this run."""
        self.polls += 1
        self.poll_waits.add(now_s - begun_s)
        self._note(answer.config, now_s)
        if answer.task is None:
            self.polls_empty += 1
            return
        self.poll_with_task_waits.add(now_s - begun_s)
        if stamp is None:
            self.foreign += 1
        elif self._states[stamp.number] & _RECEIVED:
            self.duplicates += 1
        else:
            self._received(stamp, answer, now_s)

    def poll_failed(self, error: Exception) -> None:
        """Record that a poll failed."""
        self.poll_failures[type(error).__name__] += 1

    def _received(self, stamp: Stamp, answer: PollResponse, now_s: float) -> None:
        state = self._states[stamp.number]
        self._states[stamp.number] = state | _RECEIVED
        if state & _ACKNOWLEDGED:
            self.outstanding -= 1
        if state & _FAILED:
            self.received_unacknowledged += 1
        else:
            self.shares.dispatched(stamp.key)
        self.received += 1
        self.received_forwarded += answer.was_forwarded
        wait_s = now_s - stamp.due_s
        self.task_waits.add(wait_s)
        self.key_received[stamp.key] += 1
        self.key_wait_sum_s[stamp.key] += wait_s
        current = self.timeline.at(now_s - self.start_s)
        current.receives += 1
        current.waits.add(wait_s)
        self.last_received_s = now_s

    def _note(self, config: PartitionConfig, now_s: float) -> None:
        if not self.configs or config.version > self.configs[-1].config.version:
            self.configs.append(ConfigSeen(now_s, config))
