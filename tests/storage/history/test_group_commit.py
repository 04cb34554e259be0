"""Commits of many shards share a transaction on PostgreSQL; each is fenced, rejected and retried alone."""

import asyncio
import random
from collections import defaultdict
from itertools import count

import pytest

from fairlead.core.errors import FairleadError
from fairlead.storage.commit import Absent, Ancestor, BranchWrite, Commit, IsRun, NotOpen
from fairlead.storage.history import HistoryStore, TaskKey
from fairlead.storage.history_conflicts import CurrentConflict, ForkBroken, RunConflict, TaskBelowLevel
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.postgres.connections import Unstorable
from fairlead.storage.postgres.group_commit import EARLY_WRITES_MIN
from fairlead.storage.postgres.history_writes import DELETED_IN_BATCH_MAX
from fairlead.storage.tasks import LeaseLost
from fairlead.storage.visibility import VisibilityDelete
from tests.storage.history.hosts import SHARDS, OpenStore, outcomes_of, raw_connection, transactions_of_runs
from tests.storage.history.writes import (
    COMPLETED,
    NAMESPACE,
    RUNNING,
    assert_whole_or_absent,
    batch,
    current,
    everything,
    key,
    row,
    run,
    task,
)


async def test_commits_of_many_shards_that_wait_share_a_transaction(open_store: OpenStore, postgres_dsn: str) -> None:
    store = (await open_store()).history
    leases = {shard: (await store.take_shard(shard)).range_id for shard in SHARDS}
    commits = [store.commit(shard, leases[shard], everything(100 + shard)) for shard in SHARDS]
    await asyncio.gather(*commits)
    assert await transactions_of_runs(postgres_dsn) == [len(SHARDS)]
    for shard in SHARDS:
        assert await assert_whole_or_absent(store, 100 + shard, shard_id=shard)


async def test_only_the_faulty_commits_of_a_batch_fail(open_store: OpenStore, postgres_dsn: str) -> None:
    """FL-42: the fence of each write is its own range id, also in a shared transaction."""
    store = (await open_store()).history
    range_id = (await store.take_shard(1)).range_id
    stale = (await store.take_shard(2)).range_id
    fresh = await store.renew_shard(2, stale)
    await store.commit(1, range_id, everything(1))
    await store.complete_tasks(1, range_id, "transfer", TaskKey(0, 50))
    broken = BranchWrite("tree", "fork", (Ancestor("none", 3),))
    outcomes = await outcomes_of(
        store.commit(1, range_id, everything(101)),
        store.commit(2, stale, everything(102)),
        store.commit(2, fresh, everything(103)),
        store.commit(1, range_id, everything(1)._replace(current=[])),
        store.commit(1, range_id, everything(1)._replace(runs=[])),
        store.commit(1, range_id, Commit(runs=[run("run-104", workflow_id="order 104")], tasks=[task(50)])),
        store.commit(1, range_id, Commit(runs=[run("run-105", workflow_id="order 105")], branches=[broken])),
        store.commit(1, range_id, Commit(runs=[run("run-106", workflow_id="a\0b")])),
        store.commit(1, range_id, Commit(runs=[run("run-107", workflow_id="\ud800")])),
        store.commit(9, 1, everything(108)),
        store.complete_tasks(2, stale, "timer", TaskKey(10**9, 0)),
        store.complete_tasks(2, fresh, "transfer", TaskKey(0, 3)),
        store.commit(1, range_id, everything(109)),
    )
    assert outcomes == [
        *(type(None), LeaseLost, type(None), RunConflict, CurrentConflict, TaskBelowLevel, ForkBroken),
        *(Unstorable, Unstorable, LeaseLost, LeaseLost, int, type(None)),
    ]
    present = {number: await assert_whole_or_absent(store, number, shard_id=1) for number in (101, 102, 108, 109)}
    assert present == {101: True, 102: False, 108: False, 109: True}
    assert await assert_whole_or_absent(store, 103, shard_id=2)
    assert sorted(one.run_id for one in await store.list_runs(1, after=None, limit=100)) == [
        *("run-1", "run-101", "run-109"),
    ]
    lease = await store.take_shard(2)
    assert lease.levels == {"transfer": TaskKey(0, 3)}


def random_commit(chance: random.Random, number: int) -> Commit:
    """A commit to one of few workflow ids, so that many of those that wait together meet."""
    workflow_id = f"order {chance.randrange(6)}"
    run_id = f"{workflow_id} run {chance.randrange(3)}"
    conditions: list[Absent | NotOpen | IsRun] = [Absent(), NotOpen(), IsRun(run_id)]
    status = chance.choice([RUNNING, COMPLETED])
    expected = chance.choice([None, None, 1, 2, 3])
    branch = BranchWrite(run_id, f"fork {number}", (Ancestor("main", chance.choice([3, 6])),))
    return Commit(
        runs=[run(run_id, workflow_id=workflow_id, expected=expected, state=b"%d" % number, status=status)],
        batches=[batch(1, chance.choice([2, 5]), tree=run_id, transaction_id=number)] if chance.random() < 0.5 else [],
        branches=[branch] if chance.random() < 0.2 else [],
        current=[current(run_id, chance.choice(conditions), workflow_id=workflow_id, status=status)]
        if chance.random() < 0.6
        else [],
        tasks=[task(number)],
        visibility=[
            row(run_id, workflow_id=workflow_id, memo=b"%d" % number)
            if chance.random() < 0.8
            else VisibilityDelete(NAMESPACE, run_id)
        ],
    )


@pytest.mark.parametrize("seed", range(12))
async def test_commits_of_a_batch_have_the_effect_of_single_commits(open_store: OpenStore, seed: int) -> None:
    """Batches keep the order of commits that meet: outcomes and state equal those of a store without batches."""
    chance = random.Random(seed)
    store, model = (await open_store()).history, MemoryHistory()
    shards = (1, 2, 3)
    stale = {shard: (await store.take_shard(shard)).range_id for shard in shards}
    range_ids = {shard: (await store.take_shard(shard)).range_id for shard in shards}
    for _ in range(2):
        for shard in shards:
            await model.take_shard(shard)
    numbers = count(1)
    for _ in range(4):
        wanted = []
        for _ in range(chance.randint(2, 3 * EARLY_WRITES_MIN)):
            shard = chance.choice(shards)
            range_id = stale[shard] if chance.random() < 0.1 else range_ids[shard]
            wanted.append((shard, range_id, _of_shard(random_commit(chance, next(numbers)), shard)))
        outcomes = await outcomes_of(*(store.commit(*one) for one in wanted))
        expected = [(await outcomes_of(model.commit(*one)))[0] for one in wanted]
        assert outcomes == expected
        for shard in shards:
            assert await _state(store, shard) == await _state(model, shard)
    await model.close()


def _of_shard(commit: Commit, shard: int) -> Commit:
    """The same commit with a workflow id, run id and tree of its own shard, as the ids of a store are."""
    return Commit(
        [one._replace(workflow_id=f"{one.workflow_id} {shard}", run_id=f"{one.run_id} {shard}") for one in commit.runs],
        [one._replace(tree_id=f"{one.tree_id} {shard}") for one in commit.batches],
        [one._replace(tree_id=f"{one.tree_id} {shard}") for one in commit.branches],
        [
            one._replace(
                workflow_id=f"{one.workflow_id} {shard}",
                run_id=f"{one.run_id} {shard}",
                condition=IsRun(f"{one.condition.run_id} {shard}")
                if isinstance(one.condition, IsRun)
                else one.condition,
            )
            for one in commit.current
        ],
        commit.tasks,
        [one._replace(run_id=f"{one.run_id} {shard}") for one in commit.visibility],
    )


async def _state(store: HistoryStore, shard: int) -> list[object]:
    runs = await store.list_runs(shard, after=None, limit=1000)
    return [
        [await store.read_run(shard, *one[:3]) for one in runs],
        [await store.read_current(shard, NAMESPACE, workflow_id) for workflow_id in sorted({one[1] for one in runs})],
        [await store.read_branch(one.run_id, "main", 1, 100, limit_bytes=10_000) for one in runs],
        await store.read_tasks(shard, "transfer", after=TaskKey(0, 0), until_ns=None, limit=10_000),
        sorted(await store.list_visibility(NAMESPACE, limit=1000)),
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_only_the_last_of_two_racing_owners_writes_and_other_shards_continue(
    open_store: OpenStore, seed: int
) -> None:
    chance = random.Random(seed)
    old, new = (await open_store()).history, (await open_store()).history
    leases = {shard: (await old.take_shard(shard)).range_id for shard in SHARDS}
    contested = set(chance.sample(SHARDS, 8))
    numbers = count(1)
    acknowledged: dict[int, set[int]] = defaultdict(set)
    lost: set[int] = set()
    is_over = asyncio.Event()

    async def keep_committing(shard: int) -> None:
        while not is_over.is_set():
            number = next(numbers)
            try:
                await old.commit(shard, leases[shard], everything(number))
            except LeaseLost:
                lost.add(shard)
                return
            acknowledged[shard].add(number)

    writers = [asyncio.create_task(keep_committing(shard)) for shard in SHARDS for _ in range(3)]
    seen: dict[int, set[int]] = {}
    for shard in contested:
        await asyncio.sleep(chance.random() * 0.03)
        taken = await new.take_shard(shard)
        seen[shard] = {int(one.run_id[4:]) for one in await new.list_runs(shard, after=None, limit=100_000)}
        await new.commit(shard, taken.range_id, everything(10**6 + shard))
    async with asyncio.timeout(30):
        while lost != contested:  # noqa: ASYNC110 - it happens in the other tasks
            await asyncio.sleep(0.001)
    is_over.set()
    await asyncio.gather(*writers)
    assert lost == contested
    for shard in contested:
        # All commits that the old owner got acknowledged were stored at the takeover, and none came later.
        assert seen[shard] == acknowledged[shard]
        found = {int(one.run_id[4:]) for one in await new.list_runs(shard, after=None, limit=100_000)}
        assert found == seen[shard] | {10**6 + shard}
    for shard in set(SHARDS) - contested:
        found = {int(one.run_id[4:]) for one in await new.list_runs(shard, after=None, limit=100_000)}
        assert found == acknowledged[shard]
        assert len(found) > 3


async def test_a_shard_that_another_transaction_has_locked_does_not_hold_up_the_others(
    open_store: OpenStore, postgres_dsn: str
) -> None:
    store = (await open_store()).history
    leases = {shard: (await store.take_shard(shard)).range_id for shard in SHARDS}
    async with raw_connection(postgres_dsn) as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM history_shards WHERE shard_id = 5 FOR UPDATE")
        waiting = [asyncio.create_task(store.commit(5, leases[5], everything(100)))]
        others = [store.commit(shard, leases[shard], everything(200 + shard)) for shard in SHARDS if shard != 5]
        await asyncio.wait_for(asyncio.gather(*others), 10)
        # Later commits of the shard stay behind those that wait.
        for version in (1, 2):
            later = Commit(runs=[run("run-100", workflow_id="order 100", expected=version)])
            waiting.append(asyncio.create_task(store.commit(5, leases[5], later)))
        completing = asyncio.create_task(store.complete_tasks(5, leases[5], "transfer", TaskKey(0, 200)))
        await asyncio.wait_for(store.commit(6, leases[6], everything(300)), 10)
        assert not any(one.done() for one in [*waiting, completing])
    await asyncio.gather(*waiting)
    assert await completing in (0, 1)
    found = await store.read_run(5, *key("run-100", "order 100"))
    assert found is not None
    assert found.db_version == 3
    # The shard is written with the others again.
    await asyncio.gather(*(store.commit(shard, leases[shard], everything(400 + shard)) for shard in SHARDS))
    assert max(await transactions_of_runs(postgres_dsn)) == len(SHARDS)


async def test_commits_of_one_run_take_effect_in_their_order(open_store: OpenStore) -> None:
    store = (await open_store()).history
    range_id = (await store.take_shard(1)).range_id
    versions = [None, *range(1, 100)]
    commits = [Commit(runs=[run(expected=version, state=b"%d" % (version or 0))]) for version in versions]
    await asyncio.gather(*(store.commit(1, range_id, commit) for commit in commits))
    found = await store.read_run(1, *key())
    assert found is not None
    assert (found.db_version, found.state) == (100, b"99")


async def test_batches_of_two_hosts_on_the_same_shards_do_not_deadlock(
    open_store: OpenStore, postgres_dsn: str
) -> None:
    first, second = (await open_store()).history, (await open_store()).history
    stale = {shard: (await first.take_shard(shard)).range_id for shard in SHARDS}
    leases = {shard: (await second.take_shard(shard)).range_id for shard in SHARDS}

    async def commit_all(store: HistoryStore, ranges: dict[int, int], base: int, *, step: int) -> list[type]:
        outcomes = []
        for turn in range(10):
            shards = list(SHARDS)[::step]
            numbers = [base + 100 * turn + shard for shard in shards]
            writes = [
                store.commit(shard, ranges[shard], everything(number))
                if (shard + turn) % 3
                else store.complete_tasks(shard, ranges[shard], "timer", TaskKey(number, 0))
                for shard, number in zip(shards, numbers, strict=True)
            ]
            outcomes += await outcomes_of(*writes)
        return outcomes

    refused, done, also_done = await asyncio.gather(
        commit_all(first, stale, 10_000, step=1),
        commit_all(second, leases, 20_000, step=-1),
        commit_all(second, leases, 30_000, step=1),
    )
    assert set(refused) == {LeaseLost}
    assert set(done) | set(also_done) == {type(None), int}
    async with raw_connection(postgres_dsn) as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        found = await connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert await found.fetchone() == (0,)


async def test_a_completion_deletes_as_many_tasks_as_it_may(open_store: OpenStore) -> None:
    store = (await open_store()).history
    leases = {shard: (await store.take_shard(shard)).range_id for shard in (1, 2)}
    last = DELETED_IN_BATCH_MAX + 50
    for shard, range_id in leases.items():
        await store.commit(shard, range_id, Commit(tasks=[task(number) for number in range(1, last + 1)]))
    deleted = await asyncio.gather(
        store.complete_tasks(1, leases[1], "transfer", TaskKey(0, last - 5)),
        store.complete_tasks(2, leases[2], "transfer", TaskKey(0, last), limit=DELETED_IN_BATCH_MAX + 10),
        store.complete_tasks(2, leases[2], "timer", TaskKey(5, 5)),
    )
    assert list(deleted) == [last - 5, DELETED_IN_BATCH_MAX + 10, 0]
    for shard, left in ((1, 5), (2, 40)):
        tasks = await store.read_tasks(shard, "transfer", after=TaskKey(0, 0), until_ns=None, limit=1000)
        assert [one.key.task_id for one in tasks] == list(range(last - left + 1, last + 1))


async def test_a_failed_write_is_an_error_of_its_own_for_each_caller(open_store: OpenStore) -> None:
    """Callers that add to an error's traceback or notes must not meet."""
    store = (await open_store()).history
    outcomes = await asyncio.gather(
        *(store.commit(7, 1, everything(number)) for number in range(3)), return_exceptions=True
    )
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert all(isinstance(outcome, LeaseLost | FairleadError) for outcome in outcomes)
