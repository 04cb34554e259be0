"""The audit: every allowed change has a record, and a flood of refusals is counted instead of written."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.authorization import MethodAccess, Principal, access_of
from fairlead.authorization.audit import LEFT_OUT_METHOD, Audit, address_of
from fairlead.authorization.gate import Decided
from fairlead.authorization.methods import WORKFLOW_SERVICE
from fairlead.authorization.reasons import acting
from fairlead.authorization.refusal_limit import ALL_BURST_MAX, CALLER_BURST_MAX, COUNTED_MAX
from fairlead.journal import AuditRecord
from tests.authorization.tokens import Named, Peer, bearing, make_gate

TERMINATE = access_of(WORKFLOW_SERVICE, "TerminateWorkflowExecution")
START = access_of(WORKFLOW_SERVICE, "StartWorkflowExecution")
STRANGER = Principal("", "")


@dataclass
class Stream:
    """Keeps the records."""

    records: list[AuditRecord] = field(default_factory=list)
    flush: Callable[[], None] = lambda: None

    def put(self, record: AuditRecord) -> None:
        self.records.append(record)

    put_refusal = put

    def before_close(self, flush: Callable[[], None]) -> None:
        self.flush = flush


class Scene:
    """An audit with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.timers: list[Callable[[], None]] = []
        self.stream = Stream()
        self.audit = Audit(
            self.stream, host="h", clock=lambda: self.now_s, later=lambda _, call: self.timers.append(call)
        )

    def decide(self, *, is_allowed: bool = False, peer: str = "10.0.0.9:1", principal: Principal = STRANGER) -> None:
        method: MethodAccess = TERMINATE
        self.audit.record(Decided(principal, method, "orders", is_allowed, "a reason", peer, None))

    def refusals(self) -> list[AuditRecord]:
        return [each for each in self.stream.records if not each.is_allowed and not each.left_out]


def test_a_flood_of_refusals_is_counted_and_every_allowed_change_is_written() -> None:
    scene = Scene()
    for turn in range(10_000):
        scene.decide(peer=f"10.0.0.9:{turn}")
        if turn % 100 == 0:
            scene.decide(is_allowed=True, principal=Principal("jwt", "alice"))
        scene.now_s += 0.0001
    assert sum(each.is_allowed for each in scene.stream.records) == 100
    written = len(scene.refusals())
    assert CALLER_BURST_MAX <= written <= CALLER_BURST_MAX + 2
    # The whole flood starts only one timer.
    [flush] = scene.timers
    flush()
    [counted] = [each for each in scene.stream.records if each.left_out]
    assert counted.left_out + written == 10_000
    assert (counted.method, counted.object, counted.is_allowed) == (LEFT_OUT_METHOD, "10.0.0.9", False)
    assert 1_000_000_000 <= counted.first_us < counted.time_us == int((scene.now_s - 0.0001) * 1e6)
    # Nothing is counted twice, and the next flood sets the timer again.
    flush()
    assert sum(1 for each in scene.stream.records if each.left_out) == 1
    for _ in range(100):
        scene.decide()
    assert len(scene.timers) == 2


def test_a_flood_from_many_addresses_is_bounded_in_all() -> None:
    scene = Scene()
    for turn in range(5_000):
        scene.decide(peer=f"10.0.{turn // 250}.{turn % 250}:1")
    assert len(scene.refusals()) == ALL_BURST_MAX
    scene.stream.flush()
    counted = [each for each in scene.stream.records if each.left_out]
    assert len(counted) == COUNTED_MAX + 1
    assert sum(each.left_out for each in counted) == 5_000 - ALL_BURST_MAX
    assert counted[-1].object == "further callers"


def test_a_flood_of_strangers_does_not_hide_what_a_known_caller_tried() -> None:
    scene = Scene()
    for turn in range(5_000):
        scene.decide(peer=f"10.0.{turn // 250}.{turn % 250}:1")
    scene.decide(principal=Principal("api-key", "mallory"))
    assert scene.refusals()[-1].principal == "mallory"


def test_refusals_are_written_again_after_the_flood() -> None:
    scene = Scene()
    for _ in range(10_000):
        scene.decide()
    before = len(scene.refusals())
    scene.now_s += 2
    scene.decide()
    assert len(scene.refusals()) == before + 1


def test_refusals_do_not_displace_changes_from_the_console() -> None:
    scene = Scene()
    scene.decide(is_allowed=True, principal=Principal("jwt", "alice"))
    for turn in range(2_000):
        scene.now_s += 1
        scene.decide(peer=f"10.0.{turn // 250}.{turn % 250}:1")
    recent = scene.audit.recent
    assert recent[0].principal == "alice"
    assert [each.time_us for each in recent] == sorted(each.time_us for each in recent)


def test_the_connections_of_one_address_count_together() -> None:
    assert address_of("10.0.0.9:1234") == address_of("10.0.0.9") == "10.0.0.9"
    assert address_of("2001:db8:1:2:3:4:5:6:50000") == address_of("2001:db8:1:2::9") == address_of("2001:db8:1:2::7:80")


async def test_nothing_that_a_caller_sends_puts_an_allowed_call_into_the_audit() -> None:
    decided: list[Decided] = []
    gate = make_gate(mapper=Named(), decided=decided)
    for permission in ("orders:write", "orders:admin"):
        peer = Peer({"authorization": f"Bearer {permission}", "fairlead-reason": "look at me"})
        await gate.admit(peer, START, "orders")
    assert decided == []
    # An action of the console is in the audit, with its reason; what it only reads is not.
    with acting("the customer asked"):
        await gate.admit(bearing("orders:write"), START, "orders")
        await gate.admit(bearing("orders:write"), access_of(WORKFLOW_SERVICE, "DescribeNamespace"), "orders")
    [found] = decided
    assert (found.method.name, found.reason) == ("StartWorkflowExecution", "the customer asked")


async def test_cancellations_of_all_and_signals_of_admins_are_in_the_audit() -> None:
    decided: list[Decided] = []
    gate = make_gate(mapper=Named(), decided=decided)
    cancels = [
        access_of(WORKFLOW_SERVICE, f"RequestCancel{kind}Execution")
        for kind in ("Workflow", "Activity", "NexusOperation")
    ]
    for method in cancels:
        await gate.admit(bearing("orders:write"), method, "orders")
    assert [each.method.name for each in decided] == [method.name for method in cancels]
    decided.clear()
    signal = access_of(WORKFLOW_SERVICE, "SignalWorkflowExecution")
    await gate.admit(bearing("orders:write,other:admin"), signal, "orders")
    assert decided == []
    for admin in ("orders:admin", "temporal-system:admin"):
        await gate.admit(bearing(admin), signal, "orders")
    assert len(decided) == 2
