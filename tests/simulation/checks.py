"""What must hold, in every moment of a run and at its end: the invariants of both matching fact sheets."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from fairlead.core.fairness import Level
from fairlead.core.partitions import Partition, PartitionConfig, TaskList, parse_partition_name
from fairlead.matching.messages import AddRequest, PollRequest
from fairlead.matching.operator_client import TaskListDescription
from fairlead.settings import Plain
from fairlead.storage.contract import Levels, QueueId, StoredTask
from tests.simulation.history import History
from tests.simulation.network import Call
from tests.simulation.store import WatchedStore
from tests.simulation.transcript import Transcript
from tests.simulation.virtual_loop import Process

# So many lost tasks are told about in full.
LOST_SHOWN_MAX = 3


class Checks:
    """Watches the store, the network and the clients of one run, and complains to its transcript."""

    def __init__(self, transcript: Transcript, history: History) -> None:
        self._transcript = transcript
        self._history = history
        self.store: WatchedStore | None = None
        # By task: the partitions to which its producer's client has sent it.
        self._sent_to: dict[str, set[int]] = {}
        self._forwarding: Counter[tuple[str, Process, Partition]] = Counter()
        self.forwarded_tasks = 0
        self.forwarded_polls = 0
        self.polls_sent_down = 0
        self.stored = self.configs = self.leases = 0
        # By queue and range id, then by priority: the ack level as its owner told it last.
        self._ack_levels: dict[tuple[QueueId, int], dict[int, Level]] = {}
        self.tasks_max = self.polls_max = 0
        # By observer and task list: the version that it went by last.
        self._versions: dict[tuple[Process, TaskList], int] = {}
        self.is_forced = False

    def expect(self, settings: dict[str, Plain]) -> None:
        """The most that may be forwarded at once, of all that the settings will ever say."""
        self.tasks_max = max(3, cast("int", settings["matching.forwarderMaxOutstandingTasks"]))
        self.polls_max = max(3, cast("int", settings["matching.forwarderMaxOutstandingPolls"]))

    # What takes effect in the store

    def appended(self, queue: QueueId, priority: int, tasks: Sequence[StoredTask], before: Levels | None) -> None:
        """Every new level is above A; only the partition that was asked stores a task; and it must be read."""
        number = parse_partition_name(queue.name)[1]
        names = [task.payload.decode() for task in tasks]
        self.stored += len(names)
        self._transcript.note("store", f"append to {queue.name}: {' '.join(names)}")
        for name, task in zip(names, tasks, strict=True):
            if before is not None and task.level <= before.ack_level:
                self._violate(
                    f"{name} is stored at {_text(task.level)} in {queue.name}, priority {priority}, "
                    f"not above the ack level {_text(before.ack_level)}: nobody will read it"
                )
            if number not in self._sent_to.get(name, ()):
                self._violate(f"{name} is stored in partition {number}, which only had it forwarded to it")
        config = self._config(queue)
        if config is not None and number >= config.read and not self.is_forced:
            self._violate(f"{' '.join(names)} stored in partition {number}, which is not read any more: {config}")

    def deleted(self, queue: QueueId, tasks: Sequence[StoredTask], *, range_id: int, owner: int) -> None:
        """Only the owner deletes, and never what was acknowledged and not started."""
        names = [task.payload.decode() for task in tasks]
        self._transcript.note("store", f"delete in {queue.name}: {' '.join(names)}")
        if range_id != owner:
            self._violate(
                f"range id {range_id} deleted {len(names)} tasks of {queue.name}, which range id {owner} owns: "
                + " ".join(names)
            )
        for name in names:
            if name in self._history.acknowledged and name not in self._history.started:
                self._violate(f"{name} is deleted from {queue.name} and was never started")

    def configured(self, queue: QueueId, before: PartitionConfig | None, after: PartitionConfig) -> None:
        """Each change adds one to the version, and nothing is left where nobody reads any more."""
        self._transcript.note("store", f"config of {queue.name}: {before} becomes {after}")
        self.configs += 1
        if before is None:
            return
        if after.version != before.version + 1 and after != before:
            self._violate(f"{queue.name}: {before} was followed by {after}")
        if self.is_forced:
            return
        for number in range(after.read, before.read):
            removed = QueueId(queue.namespace_id, f"/_sys/{queue.name}/{number}", queue.type)
            left = [] if self.store is None else self.store.stored(removed)
            if left:
                names = " ".join(task.payload.decode() for task in left)
                self._violate(f"partition {number} of {queue.name} left the read partitions with {names} in it")

    # What owners ask of the store

    def leased(self, queue: QueueId, range_id: int, *, renewed: int | None) -> None:
        """One who renews goes on where it was; a new owner begins with what was saved."""
        self.leases += renewed is None
        known = {} if renewed is None else self._ack_levels.get((queue, renewed), {})
        self._ack_levels[queue, range_id] = known

    def told(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        """A never decreases while a queue has the same owner."""
        known = self._ack_levels.setdefault((queue, range_id), {})
        for priority, (ack_level, _) in levels.items():
            if ack_level < known.get(priority, ack_level):
                self._violate(
                    f"{queue.name}, priority {priority}: range id {range_id} says that A is {_text(ack_level)}, "
                    f"after it was {_text(known[priority])}"
                )
            known[priority] = ack_level

    # What goes over the network

    def call_sent(self, call: Call) -> None:
        """Forwarded requests go up, within their limits; what is sent down is marked, and sent once."""
        request: Any = call.request
        if isinstance(request, AddRequest):
            self._add_sent(call, request)
        elif isinstance(request, PollRequest):
            self._poll_sent(call, request)
        if isinstance(request, AddRequest | PollRequest):
            self._see(call.caller, request.config, request.partition)

    def call_ended(self, call: Call) -> None:
        """A forward has come back, one way or another."""
        key = _forward_key(call)
        if key is not None:
            self._forwarding[key] -= 1

    def _add_sent(self, call: Call, request: AddRequest) -> None:
        name, number = request.task.payload.decode(), request.partition.number
        if request.forwarded_from is None:
            self._sent_to.setdefault(name, set()).add(number)
            self._transcript.note(call.caller.name, f"{call} of {name} to partition {number}")
            return
        self._transcript.note(
            call.caller.name, f"{call} of {name} from partition {request.forwarded_from} up to {number}"
        )
        self.forwarded_tasks += 1
        self._check_up(call, number, request.forwarded_from)
        self._count_forward(call, "tasks", self.tasks_max)

    def _poll_sent(self, call: Call, request: PollRequest) -> None:
        number = request.partition.number
        if request.is_sent_down:
            self.polls_sent_down += 1
            if request.forwarded_from == number or number == 0:
                self._violate(f"{call}: a poll is sent down from {request.forwarded_from} to {number}")
        elif request.forwarded_from is not None:
            self.forwarded_polls += 1
            self._check_up(call, number, request.forwarded_from)
            self._count_forward(call, "polls", self.polls_max)

    def _check_up(self, call: Call, number: int, forwarded_from: int) -> None:
        if not number < forwarded_from:
            self._violate(f"{call}: forwarded from partition {forwarded_from} to {number}, which is not above it")

    def _count_forward(self, call: Call, kind: str, maximum: int) -> None:
        key = _forward_key(call)
        if key is None:
            return
        self._forwarding[key] += 1
        # A partition that is being unloaded may still have its own under way while it is loaded again.
        if self._forwarding[key] > 2 * maximum:
            self._violate(f"{call}: {self._forwarding[key]} {kind} of {key[2].name} are forwarded at once")

    def _see(self, observer: Process, config: PartitionConfig | None, partition: Partition) -> None:
        """What a client goes by never gets older."""
        if config is None:
            return
        key = (observer, partition.task_list)
        if config.version < self._versions.get(key, 0):
            self._violate(f"{observer.name} goes by {config}, after version {self._versions[key]}")
        self._versions[key] = config.version

    # At the end

    def described(self, description: TaskListDescription, stored: PartitionConfig | None) -> None:
        """All that are read go by the stored configuration, and count what the store holds."""
        for number, failure in description.missing.items():
            self._violate(f"partition {number} can't be asked at the end: {type(failure).__name__} {failure}")
        for number, answer in description.partitions.items():
            if answer.config != stored:
                self._violate(f"partition {number} goes by {answer.config} at the end, and {stored} is stored")
            drain = answer.drain
            if drain is None or drain.appends_in_flight or drain.stored_tasks or answer.report.tasks:
                self._violate(f"partition {number} is not empty at the end: {drain}, it counts {answer.report.tasks}")

    def finish(self) -> None:
        """Every acknowledged task was started, and all forwards have come back."""
        lost = [task for task in self._history.acknowledged if task not in self._history.started]
        for task in lost[:LOST_SHOWN_MAX]:
            seen = "\n    ".join(self._transcript.about(task))
            self._violate(f"{task} was acknowledged and never started ({len(lost)} are lost). Its traces:\n    {seen}")
        for task in self._history.started_at_peace:
            if task not in self._history.delivered:
                seen = "\n    ".join(self._transcript.about(task))
                self._violate(f"{task} was started at peace and given to no worker. Its traces:\n    {seen}")
        for key, count in self._forwarding.items():
            if count:
                self._violate(
                    f"{count} {key[0]} of {key[2].name} at {key[1].name} never came back from being forwarded"
                )

    def kept_rate(self, rate_per_s: float, *, since_s: float, leases: int) -> None:
        """Whatever partitions there are, together they dispatch no faster; each load begins with a second's worth."""
        times = sorted(started_s for started_s in self._history.started.values() if started_s > since_s)
        if len(times) > 1:
            allowed = rate_per_s * (times[-1] - times[0] + 1.0 + leases) + 1
            if len(times) > allowed:
                self._violate(
                    f"{len(times)} tasks were started within {times[-1] - times[0]:.3f} s, with {leases} loads: "
                    f"at {rate_per_s} a second that is {allowed:.0f} at most"
                )

    def _config(self, queue: QueueId) -> PartitionConfig | None:
        name, _ = parse_partition_name(queue.name)
        return None if self.store is None else self.store.config(QueueId(queue.namespace_id, name, queue.type))

    def _violate(self, what: str) -> None:
        self._transcript.violate("checks", what)


def _forward_key(call: Call) -> tuple[str, Process, Partition] | None:
    request: Any = call.request
    if not isinstance(request, AddRequest | PollRequest) or request.forwarded_from is None:
        return None
    if isinstance(request, PollRequest) and request.is_sent_down:
        return None
    kind = "tasks" if isinstance(request, AddRequest) else "polls"
    return kind, call.caller, Partition(request.partition.task_list, request.forwarded_from)


def _text(level: Level) -> str:
    return f"<{level.pass_number}, {level.task_id}>"
