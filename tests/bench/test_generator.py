"""The load generator with a fake of known behaviour, on virtual time: its measurements are exact."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from fairlead.bench.generator import POLLERS_LEAD_S, LoadGenerator
from fairlead.bench.keys import KeyPlan
from fairlead.bench.payload import Stamp, pack, unpack
from fairlead.bench.plan import LoadPlan
from fairlead.bench.schedule import Phase
from fairlead.bench.tally import Tally
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.messages import AddResponse, NewTask, PollResponse
from fairlead.simulations.virtual_loop import run as run_in_virtual_time
from tests.bench.fake_client import FakeBehaviour, FakeClient, Refused

TASK_QUEUE = TaskQueueId("bench", "bench", TaskType.ACTIVITY)
RUN_ID = 77


def new_generator(clients: list[FakeClient], plan: LoadPlan) -> LoadGenerator:
    return LoadGenerator(
        clients,
        plan,
        task_queue=TASK_QUEUE,
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


def test_tasks_of_an_open_loop_are_due_at_fixed_times() -> None:
    tally, client = run(plan(tasks=100))
    stamps = [unpack(task.payload) for task in client.added]
    assert [stamp.due_s - tally.start_s for stamp in stamps if stamp is not None] == pytest.approx(
        [number / 1000 for number in range(100)]
    )
    assert (tally.sent, tally.acknowledged, tally.received, tally.outstanding) == (100, 100, 100, 0)
    assert tally.task_waits.max_s == pytest.approx(0.0)


def test_a_slow_server_does_not_slow_an_open_loop() -> None:
    tally, client = run(plan(tasks=1000, producers=100), FakeBehaviour(add_s=0.05))
    assert tally.last_answered_s - tally.start_s == pytest.approx(0.999 + 0.05)
    assert client.adds_in_flight_max == pytest.approx(50, abs=1)
    assert tally.add_waits.mean_s == pytest.approx(0.05)


def test_a_stall_of_the_server_counts_for_all_tasks_due_during_it() -> None:
    """No coordinated omission: a tenth of the tasks are due during the stall, and wait for its end."""
    stall = FakeBehaviour(stall_at_s=POLLERS_LEAD_S + 1.0, stall_s=0.4)
    tally, _ = run(plan(tasks=4000, producers=10), stall)
    # 400 of 4,000 tasks waited; their waits are evenly distributed between 0 and 0.4 s.
    assert tally.task_waits.at_s(89.9) == pytest.approx(0.0, abs=1e-6)
    assert tally.task_waits.at_s(95) == pytest.approx(0.2, rel=0.01)
    assert tally.task_waits.at_s(99) == pytest.approx(0.36, rel=0.01)
    assert tally.task_waits.max_s == pytest.approx(0.4, rel=0.01)
    # The wait of an add is measured from its sending: all but ten look fast. Only the wait of a task shows the stall.
    assert tally.add_waits.at_s(99) == pytest.approx(0.0, abs=1e-6)


def test_a_closed_loop_keeps_one_add_per_producer_in_flight() -> None:
    tally, client = run(plan(phases=(), producers=7, tasks=100), FakeBehaviour(add_s=0.002))
    assert client.adds_in_flight_max == 7
    assert tally.acknowledged == 100
    assert tally.last_answered_s - tally.start_s == pytest.approx(0.002 * 15)
    # A task is due when its producer is free, so no task is sent late.
    assert tally.send_delays.max_s == 0.0


def test_a_closed_loop_ends_after_its_duration() -> None:
    tally, _ = run(plan(phases=(), producers=2, tasks=None, duration_s=0.305), FakeBehaviour(add_s=0.01))
    assert tally.last_answered_s - tally.start_s == pytest.approx(0.31)
    assert (tally.acknowledged, tally.outstanding) == (62, 0)


def test_an_open_loop_with_a_duration_sends_the_tasks_due_in_it() -> None:
    assert run(plan(tasks=None, duration_s=0.2))[0].sent == 200


def test_the_load_ends_at_its_number_of_tasks_or_its_duration_whichever_comes_first() -> None:
    assert run(plan(tasks=100, duration_s=0.2))[0].sent == 100
    assert run(plan(tasks=300, duration_s=0.2))[0].sent == 200


def test_an_acknowledged_task_that_never_arrives_is_outstanding() -> None:
    tally, _ = run(plan(), FakeBehaviour(lose=frozenset({3, 50, 199})))
    assert (tally.acknowledged, tally.received, tally.outstanding) == (200, 197, 3)


def test_the_drain_continues_while_tasks_still_arrive() -> None:
    """The drain timeout restarts with each task that arrives."""
    tally, _ = run(plan(tasks=40, pollers=1, work_s=5.0, drain_timeout_s=10.0))
    assert (tally.received, tally.outstanding) == (40, 0)


def test_a_rejected_task_does_not_count_as_lost() -> None:
    tally, _ = run(plan(), FakeBehaviour(refuse=frozenset({0, 7})))
    assert (tally.acknowledged, tally.received, tally.outstanding) == (198, 198, 0)
    assert tally.add_failures == {"Refused": 2}
    assert tally.add_waits.count == 200


def test_a_task_that_arrives_although_its_add_failed_is_not_a_duplicate() -> None:
    tally, _ = run(plan(), FakeBehaviour(refuse_but_keep=frozenset({5})))
    assert (tally.acknowledged, tally.received, tally.received_unacknowledged) == (199, 200, 1)
    assert (tally.duplicates, tally.outstanding) == (0, 0)


def test_a_task_that_arrives_twice_is_a_duplicate_and_received_once() -> None:
    tally, _ = run(plan(), FakeBehaviour(repeat=frozenset({1, 2, 3})))
    assert (tally.received, tally.duplicates, tally.outstanding) == (200, 3, 0)
    assert tally.task_waits.count == 200


def test_tasks_of_other_runs_are_counted_as_foreign() -> None:
    others = (b"something else", pack(Stamp(RUN_ID + 1, 0, 0, 0.0), size_bytes=0))
    tally, _ = run(plan(), FakeBehaviour(foreign=others))
    assert (tally.foreign, tally.received, tally.duplicates, tally.outstanding) == (2, 200, 0, 0)


def test_a_failed_poll_is_repeated() -> None:
    tally, _ = run(plan(), FakeBehaviour(refuse_polls=5))
    assert tally.poll_failures == {"Refused": 5}
    assert tally.received == 200


def test_empty_polls_are_counted() -> None:
    tally, _ = run(plan(phases=(Phase(0.1),), tasks=2, pollers=3, poll_timeout_s=4.0))
    # Two pollers without a task poll for ten seconds, four seconds at a time.
    assert tally.polls_empty >= 6
    assert tally.polls == tally.polls_empty + 2


def test_polls_begin_after_all_adds_if_the_backlog_is_built_first() -> None:
    tally, client = run(plan(is_backlog_first=True, keys=KeyPlan(count=4), tasks=100), FakeBehaviour(add_s=0.01))
    assert client.adds_before_first_poll == 100
    assert tally.polling_since_s == pytest.approx(tally.last_answered_s)
    assert tally.received == 100
    # The fake dispatches in order of arrival, and the keys alternate: all have the same share.
    assert tally.shares.jain_index() == pytest.approx(1.0, abs=0.001)
    assert tally.key_received == [25] * 4


def test_live_pollers_wait_before_the_first_task_is_added() -> None:
    tally, client = run(plan(pollers=13))
    assert client.polls_in_flight_max == 13
    assert tally.polling_since_s == pytest.approx(tally.start_s - POLLERS_LEAD_S)


def test_a_busy_worker_does_not_poll() -> None:
    tally, _ = run(plan(tasks=40, pollers=2, work_s=0.01))
    # Two workers take 40 tasks of 10 ms each: the last two tasks begin after 19 others per worker.
    assert tally.last_received_s - tally.start_s == pytest.approx(0.19, abs=0.002)
    assert tally.received == 40


def test_the_wait_of_a_task_is_measured_from_its_due_time() -> None:
    tally, _ = run(plan(tasks=3, pollers=1, work_s=0.01))
    # Due after 0, 1 and 2 ms, received after 0, 10 and 20 ms.
    assert tally.task_waits.mean_s == pytest.approx((0.0 + 0.009 + 0.018) / 3)
    assert tally.task_waits.max_s == pytest.approx(0.018)
    assert tally.key_wait_sum_s == pytest.approx([0.027])


def test_a_key_whose_tasks_were_rejected_has_no_fair_share() -> None:
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


def test_started_and_forwarded_tasks_are_counted() -> None:
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


def test_preloaded_tasks_must_arrive_too() -> None:
    async def main() -> tuple[Tally, tuple[int, int, int]]:
        client = FakeClient(FakeBehaviour(lose=frozenset({4})))
        generator = new_generator([client], plan())

        async def add(task: NewTask) -> AddResponse:
            return await client.add(TASK_QUEUE, task, timeout_s=1)

        await generator.preload(60, add)
        before = generator.tally
        counts = (before.preloaded, before.outstanding, before.acknowledged)
        return await generator.run(), counts

    (tally, before), _ = run_in_virtual_time(main())
    assert before == (60, 60, 0)
    assert (tally.acknowledged, tally.received, tally.outstanding) == (200, 259, 1)
    assert tally.add_waits.count == 200


def test_a_load_ends_at_its_time_limit_even_with_outstanding_tasks() -> None:
    tally, _ = run(plan(tasks=40, pollers=1, work_s=5.0, limit_s=52.0))
    # One task every 5 s, until 52 s are over.
    assert (tally.received, tally.outstanding) == (11, 29)


def test_a_sweep_finds_the_tasks_that_are_left_and_counts_partitions_that_fail() -> None:
    async def main() -> Tally:
        client = FakeClient(FakeBehaviour(lose=frozenset({7}), repeat=frozenset({39})))
        generator = new_generator([client], plan(tasks=40, pollers=1, work_s=5.0, limit_s=52.0))
        await generator.run()

        async def poll(identity: str) -> PollResponse:
            return await client.poll(TASK_QUEUE, identity, timeout_s=1.0)

        async def refuse(identity: str) -> PollResponse:
            raise Refused(identity)

        await generator.sweep([refuse, poll, poll])
        return generator.tally

    tally = run_in_virtual_time(main())[0]
    assert (tally.received, tally.swept, tally.outstanding, tally.duplicates) == (39, 28, 1, 1)
    # One partition could not be polled and may hold the missing task, so no task counts as lost.
    assert (tally.unasked, tally.lost) == (1, 0)


def test_each_configuration_is_recorded_once() -> None:
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
