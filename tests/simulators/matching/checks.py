"""Rules that are checked during a simulation and at its end.

FB-4, FB-9, FL-1, FL-2, FL-3, FL-6, FL-7, FL-14, FL-19, FL-20, FL-42.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from fairlead.core.fairness import Level
from fairlead.core.partitions import Partition, PartitionConfig, TaskQueueId, parse_partition_name
from fairlead.matching.messages import AddRequest, PollRequest
from fairlead.matching.operator_client import TaskQueueDescription
from fairlead.settings import Plain
from fairlead.simulations.virtual_loop import Process
from fairlead.storage.tasks import Levels, QueueId, StoredTask
from tests.simulators.matching.history import History
from tests.simulators.matching.network import Call
from tests.simulators.matching.store import WatchedStore
from tests.simulators.matching.transcript import Transcript

# Maximum number of lost tasks that are reported with their lines of the transcript.
LOST_SHOWN_MAX = 3


class Checks:
    """Checks the store, the network and the clients of one run, and reports violations to its transcript."""

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
        # By queue and range id, then by priority: the last ack level that the owner reported.
        self._ack_levels: dict[tuple[QueueId, int], dict[int, Level]] = {}
        self.tasks_max = self.polls_max = 0
        # By observer and task queue: the configuration version that the observer used last.
        self._versions: dict[tuple[Process, TaskQueueId], int] = {}
        # Whether partitions are removed by force and stored counts are lost: then tasks may wait outside the counts.
        self.is_careless = False

    def expect(self, settings: dict[str, Plain]) -> None:
        """Set the bounds of concurrent forwards: the highest values that the settings can have in this run."""
        self.tasks_max = max(3, cast("int", settings["matching.forwarderMaxOutstandingTasks"]))
        self.polls_max = max(3, cast("int", settings["matching.forwarderMaxOutstandingPolls"]))

    # Effects in the store

    def appended(self, queue: QueueId, priority: int, tasks: Sequence[StoredTask], before: Levels | None) -> None:
        """A new level is above the ack level A; only the partition that the client called stores a task."""
        number = parse_partition_name(queue.name)[1]
        names = [task.payload.decode() for task in tasks]
        self.stored += len(names)
        self._transcript.note("store", f"append to {queue.name}: {' '.join(names)}")
        for name, task in zip(names, tasks, strict=True):
            if before is not None and task.level <= before.ack_level:
                self._violate(
                    f"{name} is stored at {_text(task.level)} in {queue.name}, priority {priority}, "
                    f"not above the ack level {_text(before.ack_level)}: no reader will find it"
                )
            if number not in self._sent_to.get(name, ()):
                self._violate(f"{name} is stored in partition {number}, to which it was only forwarded")
        config = self._config(queue)
        if config is not None and number >= config.read and not self.is_careless:
            self._violate(f"{' '.join(names)} stored in partition {number}, which is not read any more: {config}")

    def deleted(self, queue: QueueId, tasks: Sequence[StoredTask], *, range_id: int, owner: int) -> None:
        """Only the owner deletes tasks, and never an acknowledged task that was not started."""
        names = [task.payload.decode() for task in tasks]
        self._transcript.note("store", f"delete in {queue.name}: {' '.join(names)}")
        if range_id != owner:
            self._violate(
                f"range id {range_id} deleted {len(names)} tasks of {queue.name}, which range id {owner} owns: "
                + " ".join(names)
            )
        for name in names:
            if name in self._history.acknowledged and name not in self._history.started:
                self._violate(f"{name} was deleted from {queue.name}, but never started")

    def configured(self, queue: QueueId, before: PartitionConfig | None, after: PartitionConfig) -> None:
        """Each change adds 1 to the version, and a partition that leaves the read partitions is empty."""
        self._transcript.note("store", f"config of {queue.name}: {before} becomes {after}")
        self.configs += 1
        if before is None:
            return
        # After lost counts the root continues above the versions that other hosts use.
        is_next = after.version == before.version + 1 or (self.is_careless and after.version > before.version)
        if not is_next and after != before:
            self._violate(f"{queue.name}: the configuration changed from {before} to {after}")
        if self.is_careless:
            return
        for number in range(after.read, before.read):
            removed = QueueId(queue.namespace_id, f"/_sys/{queue.name}/{number}", queue.type)
            left = [] if self.store is None else self.store.stored(removed)
            if left:
                names = " ".join(task.payload.decode() for task in left)
                self._violate(f"partition {number} of {queue.name} left the read partitions with {names} in it")

    # Requests of owners to the store

    def leased(self, queue: QueueId, range_id: int, *, renewed: int | None) -> None:
        """A renewed lease keeps the reported ack levels; a new owner starts from the saved ones."""
        self.leases += renewed is None
        known = {} if renewed is None else self._ack_levels.get((queue, renewed), {})
        self._ack_levels[queue, range_id] = known

    def levels_reported(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        """Ack level A never decreases while a queue has the same owner."""
        known = self._ack_levels.setdefault((queue, range_id), {})
        for priority, (ack_level, _) in levels.items():
            if ack_level < known.get(priority, ack_level):
                self._violate(
                    f"{queue.name}, priority {priority}: range id {range_id} reports A at {_text(ack_level)}, "
                    f"after {_text(known[priority])}"
                )
            known[priority] = ack_level

    # Calls over the network

    def call_sent(self, call: Call) -> None:
        """Forwarded requests go up the tree, within their bounds; polls sent down are marked and not sent on."""
        request: Any = call.request
        if isinstance(request, AddRequest):
            self._add_sent(call, request)
        elif isinstance(request, PollRequest):
            self._poll_sent(call, request)
        if isinstance(request, AddRequest | PollRequest):
            self._see(call.caller, request.config, request.partition)

    def call_ended(self, call: Call) -> None:
        """A forwarded request has returned, with or without success."""
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
        # A partition that is being unloaded may still have forwards in flight while it is loaded again.
        if self._forwarding[key] > 2 * maximum:
            self._violate(f"{call}: {self._forwarding[key]} {kind} of {key[2].name} are forwarded at once")

    def _see(self, observer: Process, config: PartitionConfig | None, partition: Partition) -> None:
        """The configuration version that a client uses never decreases."""
        if config is None:
            return
        key = (observer, partition.task_queue)
        if config.version < self._versions.get(key, 0):
            self._violate(f"{observer.name} uses {config} after version {self._versions[key]}")
        self._versions[key] = config.version

    # At the end

    def described(self, description: TaskQueueDescription, stored: PartitionConfig | None) -> None:
        """All read partitions use the stored configuration, and their counts agree with the store."""
        for number, failure in description.missing.items():
            self._violate(f"partition {number} can't be described at the end: {type(failure).__name__} {failure}")
        # Lost counts are saved again at the next change.
        expected = description.config if self.is_careless else stored
        for number, answer in description.partitions.items():
            if answer.config != expected:
                self._violate(f"partition {number} uses {answer.config} at the end, but {stored} is stored")
            drain = answer.drain
            if drain is None or drain.appends_in_flight or drain.stored_tasks or answer.report.tasks:
                self._violate(
                    f"partition {number} is not empty at the end: {drain}, and it reports {answer.report.tasks} tasks"
                )

    def finish(self) -> None:
        """Every acknowledged task was started, and all forwarded requests have returned."""
        lost = [task for task in self._history.acknowledged if task not in self._history.started]
        for task in lost[:LOST_SHOWN_MAX]:
            seen = "\n    ".join(self._transcript.about(task))
            self._violate(f"{task} was acknowledged and never started ({len(lost)} are lost). Transcript:\n    {seen}")
        for task in self._history.started_at_peace:
            if task not in self._history.delivered:
                seen = "\n    ".join(self._transcript.about(task))
                self._violate(
                    f"{task} was started after the last fault, but delivered to no worker. Transcript:\n    {seen}"
                )
        for key, count in self._forwarding.items():
            if count:
                self._violate(f"{count} {key[0]} of {key[2].name} at {key[1].name} were forwarded and never returned")

    def check_rate(self, rate_per_s: float, *, since_s: float, leases: int) -> None:
        """All partitions together dispatch no faster than `rate_per_s`, except for one burst of each loaded partition.

        Partitions outside the counts have their own rate until they are drained.
        """
        if self.is_careless:
            return
        times = sorted(started_s for started_s in self._history.started.values() if started_s > since_s)
        if len(times) > 1:
            allowed = rate_per_s * (times[-1] - times[0] + 1.0 + leases) + 1
            if len(times) > allowed:
                self._violate(
                    f"{len(times)} tasks were started within {times[-1] - times[0]:.3f} s, with {leases} loads: "
                    f"at {rate_per_s} per second, at most {allowed:.0f} are allowed"
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
    return kind, call.caller, Partition(request.partition.task_queue, request.forwarded_from)


def _text(level: Level) -> str:
    return f"<{level.pass_number}, {level.task_id}>"
