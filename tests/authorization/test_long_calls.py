"""Long calls end with the credential of their caller, and only those."""

import asyncio
from typing import Any

import pytest

from fairlead.api.codes import code_of
from fairlead.api.errors import Unavailable
from fairlead.authorization import AuthInfo, Claims, Denied, Role, long_calls
from fairlead.authorization.gate import Decided
from fairlead.authorization.long_calls import LongCalls
from fairlead.authorization.methods import WORKFLOW_SERVICE, access_of
from fairlead.rpc import Call, Code
from fairlead.rpc.head import IDENTITY, Head
from fairlead.storage.tasks import StoreUnavailable
from tests.authorization.tokens import make_gate
from tests.patience import until

ACCESS = access_of(WORKFLOW_SERVICE, "PollWorkflowTaskQueue")
POLL = "/temporal.api.workflowservice.v1.WorkflowService/PollWorkflowTaskQueue"


class Revocable:
    """A claim mapper whose tokens can be revoked; it counts its work."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()
        self.is_unreachable = False
        self.asked = 0

    def claims(self, info: AuthInfo) -> Claims | None:
        self.asked += 1
        if self.is_unreachable:
            raise StoreUnavailable("the keys can't be read")
        if info.token in self.revoked:
            raise Denied("revoked")
        return Claims(info.token, Role.ADMIN) if info.token else None


def call_of(token: str) -> Call:
    head = Head(POLL, {"authorization": token}, {}, timeout_s=None, encoding=IDENTITY, refusal=None)
    return Call(head, peer="10.0.0.9:1", clock=lambda: 0.0)


async def test_a_poll_ends_when_its_key_is_revoked_and_the_polls_of_others_go_on() -> None:
    mapper, decided = Revocable(), list[Decided]()
    calls = LongCalls(make_gate(mapper=mapper, decided=decided), check_s=0.01)
    task_of_matching: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def poll(token: str) -> asyncio.Task[Any]:
        return asyncio.create_task(
            calls.wait(call_of(token), Claims(token), ACCESS, "orders", asyncio.shield(task_of_matching))
        )

    kept, ended = poll("kept"), [poll("ended") for _ in range(50)]
    await until(lambda: mapper.asked >= 4)
    assert not any(each.done() for each in (kept, *ended))
    before = mapper.asked
    mapper.revoked.add("ended")
    outcomes = await asyncio.gather(*ended, return_exceptions=True)
    # Not PERMISSION_DENIED, which ends a worker: its client may have a new token already.
    assert {type(each) for each in outcomes} == {Unavailable}
    assert code_of(Unavailable("")) is Code.UNAVAILABLE
    assert not kept.done()
    assert {(each.method.name, each.namespace, each.principal.name) for each in decided} == {
        ("PollWorkflowTaskQueue", "orders", "ended")
    }
    # A check asks once for each credential, even if several polls have it.
    assert mapper.asked - before <= 6
    task_of_matching.set_result("a task")
    assert await kept == "a task"


async def test_open_polls_go_on_while_the_keys_cannot_be_read() -> None:
    mapper, decided = Revocable(), list[Decided]()
    calls = LongCalls(make_gate(mapper=mapper, decided=decided), check_s=0.01)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    poll = asyncio.create_task(calls.wait(call_of("kept"), Claims("kept"), ACCESS, "orders", answer))
    await until(lambda: mapper.asked >= 1)
    mapper.is_unreachable = True
    before = mapper.asked
    await until(lambda: mapper.asked >= before + 3)
    assert not poll.done()
    answer.set_result("a task")
    assert await poll == "a task"
    assert decided == []


async def test_a_slow_check_is_not_started_again_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    mapper = Revocable()
    gate = make_gate(mapper=mapper)
    calls = LongCalls(gate, check_s=0.001)
    running, most = 0, 0
    viewer, responds = gate.viewer, asyncio.Event()

    async def slow(call: Call) -> Claims | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        # A claim mapper may ask a remote service.
        await responds.wait()
        running -= 1
        return await viewer(call)

    monkeypatch.setattr(gate, "viewer", slow)
    forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    polls = [asyncio.create_task(calls.wait(call_of("a"), Claims("a"), ACCESS, "orders", asyncio.shield(forever)))]
    await until(lambda: running == 1)
    polls += [
        asyncio.create_task(calls.wait(call_of(f"b{number}"), Claims("b"), ACCESS, "orders", asyncio.shield(forever)))
        for number in range(5)
    ]
    await until(lambda: len(calls._open) == 6)
    # Other calls begin and end while the check waits. Only time shows that no second check begins.
    await asyncio.gather(
        # Five calls of 5 ms.
        *(calls.wait(call_of("c"), Claims("c"), ACCESS, "orders", asyncio.sleep(0.005)) for _ in range(5))
    )
    assert (running, mapper.asked) == (1, 0)
    responds.set()
    await until(lambda: mapper.asked >= 8)
    assert most == 1
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


async def test_a_poll_whose_caller_has_disconnected_is_cancelled() -> None:
    mapper = Revocable()
    calls = LongCalls(make_gate(mapper=mapper), check_s=0.01)
    forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(calls.wait(call_of("kept"), Claims("kept"), ACCESS, "orders", forever))
    await until(lambda: mapper.asked >= 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    # Nothing is checked while no call is open.
    await until(lambda: not calls._is_due)
    assert not calls._open


def test_open_calls_are_checked_as_often_as_the_docs_promise() -> None:
    assert long_calls.CHECK_S <= 2.0
