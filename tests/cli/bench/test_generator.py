"""The generator on a service of known behaviour, in virtual time: what it measures is known to the microsecond."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cli.bench.generator import POLLERS_LEAD_S, LoadGenerator
from fairlead.cli.bench.keys import KeyPlan
from fairlead.cli.bench.payload import Stamp, pack, unpack
from fairlead.cli.bench.plan import LoadPlan
from fairlead.cli.bench.schedule import Phase
from fairlead.cli.bench.tally import Tally
from fairlead.core.partitions import TaskList, TaskType
from fairlead.matching.messages import AddAnswer, NewTask, PollAnswer
from tests.cli.bench.fake_client import FakeBehaviour, FakeClient, Refused
from tests.simulation.virtual_loop import run as run_in_virtual_time

TASK_LIST = TaskList("bench", "bench", TaskType.ACTIVITY)
RUN_ID = 77


def new_generator(clients: list[FakeClient], plan: LoadPlan) -> LoadGenerator:
    return LoadGenerator(
        clients,
        plan,
        task_list=TASK_LIST,
        run_id=RUN_ID,
        random=random.Random(1).random,
        clock=asyncio.get_running_loop().time,
    )


def run(plan: LoadPlan, behaviour: FakeBehaviour | None = None) -> tuple[Tally, FakeClient]:
    async def main() -> tuple[Tally, FakeClient]:
        client = FakeClient(behaviour)
        return await new_generator([client], plan).run(), client

    return run_in_virtual_time(main())[0]


def plan(**changes: Any) -> LoadPlan:
    return replace(LoadPlan(phases=(Phase(1000.0),), tasks=200, producers=50, drain_timeout_s=100.0), **changes)


def test_in_an_open_loop_every_task_is_due_at_its_own_time() -> None:
    tally, client = run(plan(tasks=100))
    stamps = [unpack(task.payload) for task in client.added]
    assert [stamp.due_s - tally.start_s for stamp in stamps if stamp is not None] == pytest.approx(
        [number / 1000 for number in range(100)]
    )
    assert (tally.sent, tally.acknowledged, tally.received, tally.outstanding) == (100, 100, 100, 0)
    assert tally.task_waits.max_s == pytest.approx(0.0)


def test_a_slow_server_does_not_slow_the_load() -> None:
    tally, client = run(plan(tasks=1000, producers=100), FakeBehaviour(add_s=0.05))
    assert tally.last_answered_s - tally.start_s == pytest.approx(0.999 + 0.05)
    assert client.adds_in_flight_max == pytest.approx(50, abs=1)
    assert tally.add_waits.mean_s == pytest.approx(0.05)


def test_a_stall_of_the_server_is_seen_by_all_tasks_that_became_due_in_it() -> None:
    """No coordinated omission: a tenth of the tasks become due during the stall, and wait for its end."""
    stall = FakeBehaviour(stall_at_s=POLLERS_LEAD_S + 1.0, stall_s=0.4)
    tally, _ = run(plan(tasks=4000, producers=10), stall)
    # 400 of 4,000 waited, evenly from 0.4 s down to nothing.
    assert tally.task_waits.at_s(89.9) == pytest.approx(0.0, abs=1e-6)
    assert tally.task_waits.at_s(95) == pytest.approx(0.2, rel=0.01)
    assert tally.task_waits.at_s(99) == pytest.approx(0.36, rel=0.01)
    assert tally.task_waits.max_s == pytest.approx(0.4, rel=0.01)
    # Measured from when they were sent, all but ten would look fast: that is what must not happen.
    assert tally.add_waits.at_s(99) == pytest.approx(0.0, abs=1e-6)


def test_a_closed_loop_keeps_so_many_adds_in_flight() -> None:
    tally, client = run(plan(phases=(), producers=7, tasks=100), FakeBehaviour(add_s=0.002))
    assert client.adds_in_flight_max == 7
    assert tally.acknowledged == 100
    assert tally.last_answered_s - tally.start_s == pytest.approx(0.002 * 15)
    # Each is due when its producer is free, so that none is late.
    assert tally.send_delays.max_s == 0.0


def test_a_closed_loop_ends_after_its_time() -> None:
    tally, _ = run(plan(phases=(), producers=2, tasks=None, duration_s=0.305), FakeBehaviour(add_s=0.01))
    assert tally.last_answered_s - tally.start_s == pytest.approx(0.31)
    assert (tally.acknowledged, tally.outstanding) == (62, 0)


def test_an_open_loop_that_ends_after_a_time_sends_what_is_due_until_then() -> None:
    assert run(plan(tasks=None, duration_s=0.2))[0].sent == 200


def test_of_a_number_and_a_time_the_first_to_come_ends_the_load() -> None:
    assert run(plan(tasks=100, duration_s=0.2))[0].sent == 100
    assert run(plan(tasks=300, duration_s=0.2))[0].sent == 200


def test_a_task_that_was_acknowledged_and_never_came_is_lost() -> None:
    tally, _ = run(plan(), FakeBehaviour(lose=frozenset({3, 50, 199})))
    assert (tally.acknowledged, tally.received, tally.outstanding) == (200, 197, 3)


def test_a_task_is_not_lost_while_others_still_come() -> None:
    """The first task comes last, far later than the drain timeout after the load: but the others came meanwhile."""
    tally, _ = run(plan(tasks=40, pollers=1, work_s=5.0, drain_timeout_s=10.0))
    assert (tally.received, tally.outstanding) == (40, 0)


def test_a_task_that_was_refused_is_not_lost() -> None:
    tally, _ = run(plan(), FakeBehaviour(refuse=frozenset({0, 7})))
    assert (tally.acknowledged, tally.received, tally.outstanding) == (198, 198, 0)
    assert tally.add_failures == {"Refused": 2}
    assert tally.add_waits.count == 200


def test_a_task_whose_add_failed_may_come_all_the_same_and_is_no_duplicate() -> None:
    tally, _ = run(plan(), FakeBehaviour(refuse_but_keep=frozenset({5})))
    assert (tally.acknowledged, tally.received, tally.received_unacknowledged) == (199, 200, 1)
    assert (tally.duplicates, tally.outstanding) == (0, 0)


def test_a_task_that_comes_twice_is_a_duplicate_and_received_once() -> None:
    tally, _ = run(plan(), FakeBehaviour(repeat=frozenset({1, 2, 3})))
    assert (tally.received, tally.duplicates, tally.outstanding) == (200, 3, 0)
    assert tally.task_waits.count == 200


def test_tasks_of_others_are_not_taken_for_ours() -> None:
    others = (b"something else", pack(Stamp(RUN_ID + 1, 0, 0, 0.0), size_bytes=0))
    tally, _ = run(plan(), FakeBehaviour(foreign=others))
    assert (tally.foreign, tally.received, tally.duplicates, tally.outstanding) == (2, 200, 0, 0)


def test_a_poll_that_fails_is_made_again() -> None:
    tally, _ = run(plan(), FakeBehaviour(refuse_polls=5))
    assert tally.poll_failures == {"Refused": 5}
    assert tally.received == 200


def test_polls_that_bring_nothing_are_counted() -> None:
    tally, _ = run(plan(phases=(Phase(0.1),), tasks=2, pollers=3, poll_timeout_s=4.0))
    # Ten seconds with nothing to do, in polls of four, for two pollers that got neither task.
    assert tally.polls_empty >= 6
    assert tally.polls == tally.polls_empty + 2


def test_with_the_backlog_first_nobody_polls_before_all_was_added() -> None:
    tally, client = run(plan(is_backlog_first=True, keys=KeyPlan(count=4), tasks=100), FakeBehaviour(add_s=0.01))
    assert client.adds_before_first_poll == 100
    assert tally.polling_since_s == pytest.approx(tally.last_answered_s)
    assert tally.received == 100
    # A server that dispatches in the order of arrival, and keys in turn: all have the same share.
    assert tally.shares.jain_index() == pytest.approx(1.0, abs=0.001)
    assert tally.key_received == [25] * 4


def test_live_pollers_wait_before_the_first_task_comes() -> None:
    tally, client = run(plan(pollers=13))
    assert client.polls_in_flight_max == 13
    assert tally.polling_since_s == pytest.approx(tally.start_s - POLLERS_LEAD_S)


def test_a_worker_that_is_busy_does_not_poll() -> None:
    tally, _ = run(plan(tasks=40, pollers=2, work_s=0.01))
    # Two workers and 40 tasks of 10 ms each: the last pair begins when 19 pairs are done.
    assert tally.last_received_s - tally.start_s == pytest.approx(0.19, abs=0.002)
    assert tally.received == 40


def test_a_wait_is_from_due_to_received_exactly() -> None:
    tally, _ = run(plan(tasks=3, pollers=1, work_s=0.01))
    # Due after 0, 1 and 2 ms, received after 0, 10 and 20 ms.
    assert tally.task_waits.mean_s == pytest.approx((0.0 + 0.009 + 0.018) / 3)
    assert tally.task_waits.max_s == pytest.approx(0.018)
    assert tally.key_wait_sum_s == pytest.approx([0.027])


def test_a_key_whose_tasks_were_refused_is_owed_nothing() -> None:
    refused = FakeBehaviour(refuse=frozenset(range(1, 100, 2)))
    tally, _ = run(plan(is_backlog_first=True, keys=KeyPlan(count=2), tasks=100, producers=1), refused)
    kept, gone = tally.shares.share(0), tally.shares.share(1)
    assert (kept.got, gone.got) == (50, 0)
    assert (kept.owed, gone.owed) == pytest.approx((50, 0))


def test_the_load_carries_keys_weights_priority_and_size() -> None:
    keys = KeyPlan(count=3, weights=(1.0, 2.0, 5.0))
    _, client = run(plan(keys=keys, priority=2, payload_bytes=200, tasks=30))
    assert {(task.fairness_key, task.weight) for task in client.added} == {
        ("key-00000", 1.0),
        ("key-00001", 2.0),
        ("key-00002", 5.0),
    }
    assert {(task.priority, len(task.payload)) for task in client.added} == {(2, 200)}


def test_shares_of_answers_are_counted() -> None:
    tally, _ = run(plan())
    assert (tally.started_at_once, tally.adds_forwarded, tally.started_forwarded) == (50, 100, 50)
    assert (tally.received_later, tally.received_forwarded) == (150, 0)


def test_producers_and_pollers_are_divided_among_the_clients() -> None:
    async def main() -> list[FakeClient]:
        clients = [FakeClient(), FakeClient()]
        await new_generator(clients, plan(phases=(), producers=4, pollers=6, tasks=80)).run()
        return clients

    clients = run_in_virtual_time(main())[0]
    assert [client.polls_in_flight_max for client in clients] == [3, 3]
    assert [len(client.added) for client in clients] == [40, 40]


def test_what_was_there_before_must_come_too() -> None:
    async def main() -> tuple[Tally, tuple[int, int, int]]:
        client = FakeClient(FakeBehaviour(lose=frozenset({4})))
        generator = new_generator([client], plan())

        async def add(task: NewTask) -> AddAnswer:
            return await client.add(TASK_LIST, task, timeout_s=1)

        await generator.preload(60, add)
        before = generator.tally
        counts = (before.preloaded, before.outstanding, before.acknowledged)
        return await generator.run(), counts

    (tally, before), _ = run_in_virtual_time(main())
    assert before == (60, 60, 0)
    assert (tally.acknowledged, tally.received, tally.outstanding) == (200, 259, 1)
    assert tally.add_waits.count == 200


def test_a_load_ends_at_its_limit_whatever_is_outstanding() -> None:
    tally, _ = run(plan(tasks=40, pollers=1, work_s=5.0, limit_s=52.0))
    # One task every 5 seconds from the start on, until 52 seconds are over.
    assert (tally.received, tally.outstanding) == (11, 29)


def test_what_was_left_behind_is_found_and_the_rest_is_lost_or_was_not_looked_for() -> None:
    async def main() -> Tally:
        client = FakeClient(FakeBehaviour(lose=frozenset({7}), repeat=frozenset({39})))
        generator = new_generator([client], plan(tasks=40, pollers=1, work_s=5.0, limit_s=52.0))
        await generator.run()

        async def poll(identity: str) -> PollAnswer:
            return await client.poll(TASK_LIST, identity, timeout_s=1.0)

        async def refuse(identity: str) -> PollAnswer:
            raise Refused(identity)

        await generator.sweep([refuse, poll, poll])
        return generator.tally

    tally = run_in_virtual_time(main())[0]
    assert (tally.received, tally.swept, tally.outstanding, tally.duplicates) == (39, 28, 1, 1)
    # One of the partitions could not be asked: who knows what it has.
    assert (tally.unasked, tally.lost) == (1, 0)


def test_configurations_are_noted_once_and_never_backwards() -> None:
    tally, client = run(plan())
    assert [seen.config for seen in tally.configs] == [client.config]


def test_a_bug_in_the_client_ends_the_run() -> None:
    class Broken(FakeClient):
        async def poll(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

    async def main() -> None:
        await new_generator([Broken()], plan()).run()

    with pytest.raises(ZeroDivisionError):
        run_in_virtual_time(main())
