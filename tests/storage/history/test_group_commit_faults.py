"""Batches of commits whose connection or server is lost."""

import asyncio
import signal
from functools import partial
from itertools import count

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fairlead.storage.postgres import PostgresStore
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable
from tests.data_centers.wires import Cut, Wire
from tests.storage.history.hosts import SHARDS, OpenStore, outcomes_of, until
from tests.storage.history.writes import assert_whole_or_absent, everything
from tests.storage.postgres_cluster import private_cluster


async def test_a_connection_lost_after_the_commit_leaves_the_outcome_of_the_whole_batch_unknown(
    open_store: OpenStore, postgres_dsn: str
) -> None:
    """The commit took effect, and its response did not arrive."""
    parts = conninfo_to_dict(postgres_dsn)
    wire = await Wire(f"127.0.0.1:{parts['port']}").open()
    host, _, port = wire.address.rpartition(":")
    far = (await open_store(make_conninfo(postgres_dsn, host=host, port=port))).history
    near = (await open_store()).history
    range_id = (await far.take_shard(1)).range_id
    await far.commit(1, range_id, everything(1))
    wire.latency_s = 0.2
    commits = [asyncio.create_task(far.commit(1, range_id, everything(number))) for number in range(2, 12)]

    async def is_written() -> bool:
        return len(await near.list_runs(1, after=None, limit=100)) == 11

    await until(is_written)
    assert not any(commit.done() for commit in commits)
    await wire.cut(Cut.DROP)
    assert await outcomes_of(*commits) == [OutcomeUnknown] * 10
    wire.latency_s = 0.0
    wire.heal()
    # After the renewal the outcome is known, and stays as it is.
    renewed = await far.renew_shard(1, range_id)
    for number in range(1, 12):
        assert await assert_whole_or_absent(far, number, shard_id=1)
    await far.commit(1, renewed, everything(12))
    await wire.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_acknowledged_commits_survive_a_shutdown_and_a_crash_of_the_server(how: signal.Signals) -> None:
    """FL-50: committed writes survive; a commit with an unknown outcome is there as a whole or not at all."""
    with private_cluster() as cluster:
        opened = await PostgresStore.open(cluster.create_database())
        store = opened.history
        leases = {shard: (await store.take_shard(shard)).range_id for shard in SHARDS}
        numbers = count(1)
        acknowledged: dict[int, int] = {}
        unknown: dict[int, int] = {}
        is_over = asyncio.Event()

        async def keep_committing(shard: int) -> None:
            while not is_over.is_set():
                number = next(numbers)
                try:
                    await store.commit(shard, leases[shard], everything(number))
                except OutcomeUnknown:
                    unknown[number] = shard
                except StoreUnavailable:
                    continue
                else:
                    acknowledged[number] = shard

        writers = [asyncio.create_task(keep_committing(shard)) for shard in SHARDS]

        async def are_acknowledged(commits: int) -> bool:
            return len(acknowledged) >= commits

        await until(partial(are_acknowledged, 200))
        await asyncio.to_thread(cluster.stop, how)
        before = len(acknowledged)
        await asyncio.to_thread(cluster.start)
        await until(partial(are_acknowledged, before + 100))
        is_over.set()
        await asyncio.gather(*writers)
        found: set[int] = set()
        for shard in SHARDS:
            found |= {int(one.run_id[4:]) for one in await store.list_runs(shard, after=None, limit=100_000)}
        for number, shard in unknown.items():
            assert await assert_whole_or_absent(store, number, shard_id=shard) == (number in found)
        await opened.close()
    assert acknowledged.keys() <= found <= acknowledged.keys() | unknown.keys()
