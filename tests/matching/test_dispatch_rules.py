"""Dispatch rules that API calls set: validation, effect on the limits, storage, and the push to all partitions."""

import asyncio
import math

import pytest

from fairlead.core.fairness import InvalidFairnessKey, InvalidWeight
from fairlead.core.fairness.weights import OVERRIDES_MAX
from fairlead.core.partitions import Partition, PartitionConfig
from fairlead.core.rates import InvalidRate
from fairlead.matching.dispatch_rules import TooManyWeights, change_rules
from fairlead.matching.messages import (
    ConfigureRequest,
    DispatchRules,
    RateChange,
    RateRule,
    RateSource,
)
from fairlead.matching.operator_client import OperatorClient
from fairlead.matching.partition.limits import DispatchLimits
from fairlead.matching.root.state import RootState, decode_rules, encode_record
from fairlead.rpc.hosts.caller import Caller
from fairlead.settings import DynamicSettings, Plain
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import QueueId, StoreUnavailable
from tests.matching import root_world
from tests.matching.hosts import ORDERS, Hosts, add_to, at, hosts, new, partitions, poll_at
from tests.matching.root_world import ROOT, SCOPE, World, unavailable, unknown
from tests.virtual_time import on_virtual_time

AT_ROOT = Partition(ORDERS, 0)
FIVE = RateRule(5.0, "too fast", "me", 100.0)


def change(rules: DispatchRules, weights_max: int = 10, **what: object) -> DispatchRules:
    request = ConfigureRequest(AT_ROOT, "me", **what)  # type: ignore[arg-type]
    return change_rules(rules, request, now_s=100.0, weights_max=weights_max)


def operator(there: Hosts) -> OperatorClient:
    caller: Caller = there.network.caller()
    return OperatorClient(caller, next(iter(there.values())).ring, random=lambda: 0.5)


# --- changes of the rules


def test_each_change_raises_the_version_and_keeps_the_other_rules() -> None:
    rules = change(DispatchRules(), queue_rate=RateChange(5.0, "too fast"))
    assert rules == DispatchRules(1, queue_rate=FIVE)
    rules = change(rules, key_rate=RateChange(2.5), set_weights={"a": 2.0, "b": 0.5})
    assert rules == DispatchRules(2, FIVE, RateRule(2.5, "", "me", 100.0), {"a": 2.0, "b": 0.5})
    rules = change(rules, queue_rate=RateChange(None, "calm again"), set_weights={"c": 3.0}, unset_weights=["a", "x"])
    assert rules.queue_rate == RateRule(None, "calm again", "me", 100.0)
    assert rules.weights == {"b": 0.5, "c": 3.0}
    assert change(rules) is rules


def test_invalid_rates_weights_and_keys_are_rejected() -> None:
    with pytest.raises(InvalidRate):
        change(DispatchRules(), queue_rate=RateChange(-1.0))
    with pytest.raises(InvalidRate):
        change(DispatchRules(), key_rate=RateChange(math.nan))
    with pytest.raises(InvalidWeight):
        change(DispatchRules(), set_weights={"a": math.nan})
    with pytest.raises(InvalidFairnessKey):
        change(DispatchRules(), set_weights={"a" * 65: 1.0})


def test_the_number_of_weights_is_bounded_and_weights_can_always_be_removed() -> None:
    rules = change(DispatchRules(), set_weights={"a": 1.0, "b": 2.0}, weights_max=2)
    with pytest.raises(TooManyWeights, match="exceeding maximum key size"):
        change(rules, set_weights={"c": 1.0}, weights_max=2)
    assert change(rules, set_weights={"c": 1.0}, unset_weights=["a"], weights_max=2).weights == {"b": 2.0, "c": 1.0}
    # Here the setting was lowered after the weights were set.
    assert change(rules, unset_weights=["a"], weights_max=0).weights == {"b": 2.0}


def test_stored_rules_are_decoded_unchanged_and_a_missing_record_means_no_rules() -> None:
    rules = DispatchRules(3, FIVE, RateRule(None, "", "", 0.0), {"a": 2.0})
    assert decode_rules(encode_record(RootState(PartitionConfig(1, 1, 1), rules))) == rules
    assert decode_rules(None) == DispatchRules()


# --- effect on the limits


def limits(rules: DispatchRules, **settings: Plain) -> DispatchLimits:
    overrides = {f"matching.{key}": value for key, value in settings.items()}
    found = DispatchLimits(DynamicSettings(overrides=overrides), SCOPE, clock=lambda: 0.0)
    found.rules = rules
    return found


def test_a_rate_set_by_an_api_call_overrides_the_workers_and_is_limited_by_the_setting() -> None:
    called = limits(DispatchRules(1, queue_rate=FIVE))
    called.note_worker("worker", 1.0)
    assert called.of_all() == (5.0, RateSource.CALL)
    assert called.of_each(2) == (2.5, math.inf)
    called.rules = DispatchRules(2, queue_rate=RateRule(None, "", "", 0.0))
    assert called.of_all() == (1.0, RateSource.WORKER)
    assert limits(DispatchRules(1, queue_rate=FIVE), overrideTaskListRps=3.0).of_all() == (3.0, RateSource.SETTING)
    assert limits(DispatchRules()).of_all() == (math.inf, RateSource.SETTING)


def test_a_key_rate_set_by_an_api_call_replaces_the_setting() -> None:
    assert limits(DispatchRules(1, key_rate=FIVE), fairnessKeyRps=9.0).of_each(1) == (math.inf, 5.0)
    assert limits(DispatchRules(1, key_rate=RateRule(None, "", "", 0.0)), fairnessKeyRps=9.0).of_each(3)[1] == 3.0


def test_weights_set_by_an_api_call_override_the_settings_and_are_kept_first() -> None:
    settings: Plain = {f"key {number}": 2.0 for number in range(OVERRIDES_MAX)}
    merged = limits(DispatchRules(1, weights={"key 0": 9.0, "mine": 3.0}), fairnessKeyWeights=settings).weights()
    assert len(merged) == OVERRIDES_MAX
    assert (merged["key 0"], merged["mine"], merged["key 1"]) == (9.0, 3.0, 2.0)


# --- storage and push


@root_world.on_virtual_time
async def test_the_root_saves_and_pushes_the_rules_without_a_new_configuration_version() -> None:
    """SC-7: only a change of the counts raises the version."""
    world = await World.make(read=3, write=3)
    root = world.root()
    answer = await root.configure(ConfigureRequest(AT_ROOT, "me", queue_rate=RateChange(5.0)))
    assert answer.rules.version == 1
    assert world.stored == PartitionConfig(version=1, read=3, write=3)
    assert decode_rules(world.store._queues[ROOT].rules) == answer.rules == world.rules
    await root.repair()
    assert world.versions(3) == [1, 1, 1]
    assert [world.member(number).rules.version for number in (1, 2)] == [1, 1]
    # A request without changes saves nothing.
    world.trouble.calls.clear()
    assert (await root.configure(ConfigureRequest(AT_ROOT))).rules == answer.rules
    assert world.trouble.calls == []
    await root.close()


@root_world.on_virtual_time
async def test_a_failed_save_changes_nothing_and_a_save_of_unknown_outcome_is_read_back() -> None:
    world = await World.make()
    root = world.root()
    world.trouble.before_it["save_rules"] = [unavailable]
    with pytest.raises(StoreUnavailable):
        await root.configure(ConfigureRequest(AT_ROOT, queue_rate=RateChange(5.0)))
    assert world.rules == DispatchRules()
    world.trouble.before_it["save_rules"] = [unknown]
    with pytest.raises(StoreUnavailable, match="was not saved"):
        await root.configure(ConfigureRequest(AT_ROOT, queue_rate=RateChange(6.0)))
    world.trouble.after_it["save_rules"] = [unknown]
    answer = await root.configure(ConfigureRequest(AT_ROOT, queue_rate=RateChange(7.0)))
    assert answer.rules.queue_rate is not None
    assert answer.rules.queue_rate.rate_per_s == 7.0
    assert world.rules == answer.rules
    await root.close()


@root_world.on_virtual_time
async def test_a_change_of_the_counts_keeps_the_rules() -> None:
    world = await World.make()
    root = world.root()
    rules = (await root.configure(ConfigureRequest(AT_ROOT, set_weights={"a": 2.0}))).rules
    await root.update(read=2, write=2, force=False)
    assert world.rules == rules
    assert world.stored == PartitionConfig(version=2, read=2, write=2)
    await root.close()


@on_virtual_time
async def test_every_partition_and_every_new_owner_uses_the_rules() -> None:
    store = MemoryStore()
    async with hosts("one", "two", "three", store=store, overrides=partitions(4)) as there:
        for number in range(4):
            await add_to(there, number, "first")
        rules = await operator(there).configure(ORDERS, queue_rate=RateChange(8.0), set_weights={"a": 2.0})
        await asyncio.sleep(1)
        described = await operator(there).describe(ORDERS)
        assert [answer.rules for answer in described.partitions.values()] == [rules] * 4
        assert [answer.rate_limit_per_s for answer in described.partitions.values()] == [2.0] * 4
        assert {answer.rate_source for answer in described.partitions.values()} == {RateSource.CALL}
        assert described.partitions[0].whole_rate_per_s == 8.0
        # The host that owns the root leaves.
        await there.remove(there.client.route(at(0)))
        for other in there.values():
            await other.membership.beat()
        await asyncio.sleep(2)
        described = await operator(there).describe(ORDERS)
        assert [answer.rules for answer in described.partitions.values()] == [rules] * 4


@on_virtual_time
async def test_a_partition_reads_the_rules_when_it_is_loaded() -> None:
    async with hosts(overrides=partitions(2)) as there:
        root = QueueId(*ORDERS)
        rules = await operator(there).configure(ORDERS, key_rate=RateChange(3.0))
        engine = there["one"].service.engine
        assert decode_rules(await there.store.load_rules(root)) == rules
        await add_to(there, 1, "a")
        (child,) = [manager for manager in engine.managers() if manager.partition_id == at(1)]
        answer = await operator(there).describe(ORDERS)
        assert answer.partitions[1].rules == rules
        assert child.configs.config.version == 1


@on_virtual_time
async def test_a_rate_set_by_an_api_call_takes_effect_at_once_and_zero_stops_dispatch() -> None:
    async with hosts() as there:
        for number in range(20):
            await add_to(there, 0, str(number))
        await operator(there).configure(ORDERS, queue_rate=RateChange(0.0, "stop"))
        assert (await poll_at(there, 0, timeout_s=5)).task is None
        await operator(there).configure(ORDERS, queue_rate=RateChange(2.0))
        began_s = asyncio.get_running_loop().time()
        for _ in range(10):
            assert (await poll_at(there, 0, timeout_s=5)).task is not None
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(4.0, abs=0.6)
        await operator(there).configure(ORDERS, queue_rate=RateChange(None))
        began_s = asyncio.get_running_loop().time()
        for _ in range(10):
            assert (await poll_at(there, 0, timeout_s=5)).task is not None
        assert asyncio.get_running_loop().time() - began_s < 0.1


async def served(there: Hosts, count: int) -> list[str]:
    tasks = [(await poll_at(there, 0, timeout_s=5)).task for _ in range(count)]
    return [task.decode() for task in tasks if task is not None]


@on_virtual_time
async def test_a_weight_set_by_an_api_call_applies_to_tasks_added_after_it() -> None:
    async with hosts() as there:
        await there.client.add(ORDERS, new("before", key="small"))
        assert await served(there, 1) == ["before"]
        await operator(there).configure(ORDERS, set_weights={"large": 4.0})
        for key in ("large", "small"):
            for _ in range(20):
                await there.client.add(ORDERS, new(key, key=key))
        got = await served(there, 20)
        assert got.count("large") == pytest.approx(16, abs=1)


@on_virtual_time
async def test_the_key_rate_uses_a_weight_set_by_an_api_call_also_for_waiting_tasks() -> None:
    async with hosts() as there:
        for _ in range(30):
            await there.client.add(ORDERS, new("a", key="a"))
            await there.client.add(ORDERS, new("b", key="b", weight=0.0))
        await operator(there).configure(ORDERS, key_rate=RateChange(1.0), set_weights={"a": 3.0})
        got: list[str] = []

        async def poll() -> None:
            while True:
                got.extend(await served(there, 1))

        polling = asyncio.create_task(poll())
        await asyncio.sleep(5.5)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        # A burst of one second passes at once, and then the rate of the key holds.
        assert got.count("a") == pytest.approx(18, abs=2)
        assert got.count("b") == pytest.approx(6, abs=1)


@on_virtual_time
async def test_tasks_without_a_weight_are_dispatched_at_the_rate_of_their_key() -> None:
    async with hosts() as there:
        await operator(there).configure(ORDERS, key_rate=RateChange(1.0), set_weights={"a": 3.0})
        for key in ("a", "b"):
            for _ in range(6):
                await there.client.add(ORDERS, new(key, key=key, weight=0.0))
        assert sorted(await served(there, 4)) == ["a", "a", "a", "b"]
        assert (await poll_at(there, 0, timeout_s=0.1)).task is None
        await asyncio.sleep(1)
        assert sorted(await served(there, 4)) == ["a", "a", "a", "b"]


@on_virtual_time
async def test_rules_can_be_set_if_the_partition_counts_come_from_the_settings() -> None:
    async with hosts(overrides={"matching.enableGetNumberOfPartitionsFromCache": False}) as there:
        rules = await operator(there).configure(ORDERS, queue_rate=RateChange(1.0))
        assert rules.queue_rate is not None
        assert rules.queue_rate.rate_per_s == 1.0
