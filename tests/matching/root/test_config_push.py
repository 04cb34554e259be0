"""SC-5: the root pushes each new configuration to the other partitions."""

import asyncio
import math
from itertools import pairwise

from fairlead.aio.background import Background
from fairlead.aio.backoff import jitter_of
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import DispatchRules, Versions
from fairlead.matching.root.config_push import (
    PUSH_S_MAX,
    PUSHES_AT_ONCE_MAX,
    REFRESHES_BETWEEN_REMINDERS,
    RETRY_S_MAX,
    RETRY_S_MIN,
    Pushes,
)
from fairlead.storage.tasks import StoreUnavailable
from tests.matching.root_world import ROOT, World, first, lost, on_virtual_time, timers


def longest() -> float:
    """Keeps every pause at its full length."""
    return 1.0


def at(version: int, read: int, write: int | None = None) -> PartitionConfig:
    return PartitionConfig(version=version, read=read, write=write or read)


async def make(*, read: int, version: int = 1) -> tuple[World, Pushes, Background]:
    world = await World.make(read=read, write=read, version=version)
    background = Background(world.log)
    pushes = Pushes(
        world.push,
        at(version, read),
        DispatchRules(),
        background=background,
        log=world.log,
        on_newer=world.newer.append,
        jitter=longest,
    )
    return world, pushes, background


async def put(world: World, pushes: Pushes, config: PartitionConfig) -> None:
    await world.store.save_config(ROOT, world.lease.range_id, config)
    pushes.notify(config, DispatchRules())


@on_virtual_time
async def test_a_change_is_pushed_to_all_old_and_new_read_partitions_except_the_root() -> None:
    world, pushes, _ = await make(read=3)
    await put(world, pushes, at(2, 5))
    await pushes.tried()
    assert sorted(world.sent) == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert pushes.acknowledged == {1: 2, 2: 2, 3: 2, 4: 2}
    world.sent.clear()
    await put(world, pushes, at(3, 2))
    await pushes.tried()
    assert sorted(world.sent) == [(1, 3), (2, 3), (3, 3), (4, 3)]


@on_virtual_time
async def test_a_push_is_repeated_until_it_is_acknowledged() -> None:
    world, pushes, _ = await make(read=2)
    world.before_push = first(3, lost)
    await put(world, pushes, at(2, 2, 1))
    await asyncio.sleep(10 * RETRY_S_MIN)
    assert world.sent == [(1, 2)] * 4
    assert pushes.acknowledged == {1: 2}
    await asyncio.sleep(1000.0)
    assert len(world.sent) == 4


@on_virtual_time
async def test_a_push_is_repeated_if_its_acknowledgement_was_lost() -> None:
    world, pushes, _ = await make(read=2)
    world.after_push = first(1, lost)
    await put(world, pushes, at(2, 2, 1))
    await pushes.tried()
    assert pushes.acknowledged == {}
    await asyncio.sleep(RETRY_S_MIN)
    await pushes.tried()
    assert pushes.acknowledged == {1: 2}


@on_virtual_time
async def test_a_hanging_push_times_out_and_delays_no_other_partition() -> None:
    world, pushes, _ = await make(read=4)

    async def hang(number: int, config: PartitionConfig) -> None:
        if number == 1:
            await asyncio.Event().wait()

    world.before_push = hang
    await put(world, pushes, at(2, 4, 1))
    await asyncio.sleep(PUSH_S_MAX / 2)
    assert pushes.acknowledged == {2: 2, 3: 2}
    world.before_push = None
    await asyncio.sleep(PUSH_S_MAX)
    assert pushes.acknowledged == {1: 2, 2: 2, 3: 2}


@on_virtual_time
async def test_a_response_with_an_older_version_is_not_an_acknowledgement() -> None:
    """The push is repeated with a pause, not in a busy loop."""
    world, pushes, background = await make(read=2)

    async def refuse(number: int, config: PartitionConfig, rules: DispatchRules) -> Versions:
        world.sent.append((number, config.version))
        return Versions(config.version - 1, rules.version)

    pushes = Pushes(
        refuse,
        at(1, 2),
        DispatchRules(),
        background=background,
        log=world.log,
        on_newer=world.newer.append,
        jitter=longest,
    )
    pushes.notify(at(2, 2, 1), DispatchRules())
    await asyncio.sleep(3600.0)
    assert pushes.acknowledged == {}
    assert 3600.0 / RETRY_S_MAX <= len(world.sent) <= 3600.0 / RETRY_S_MAX + 20
    background.end()
    pushes.end()


@on_virtual_time
async def test_a_partition_with_a_newer_version_gets_no_second_push() -> None:
    world, pushes, _ = await make(read=2)
    world.members[1].config = at(7, 2)
    await put(world, pushes, at(2, 2, 1))
    await asyncio.sleep(100.0)
    assert world.sent == [(1, 2)]
    assert pushes.acknowledged == {1: 7}
    assert world.newer == [7]


@on_virtual_time
async def test_changed_rules_are_pushed_until_acknowledged_even_if_the_counts_are_unchanged() -> None:
    world, pushes, _ = await make(read=2)
    world.before_push = first(3, lost)
    pushes.notify(at(1, 2), DispatchRules(1, weights={"a": 2.0}))
    await asyncio.sleep(10 * RETRY_S_MIN)
    assert world.sent == [(1, 1)] * 4
    assert world.members[1].rules.weights == {"a": 2.0}
    pushes.note(1, Versions(1, 0))
    await pushes.tried()
    assert len(world.sent) == 5


@on_virtual_time
async def test_an_older_configuration_is_never_sent_after_a_newer_one() -> None:
    world, pushes, _ = await make(read=8)

    async def slow(number: int, config: PartitionConfig) -> None:
        await asyncio.sleep(0.1 * number)
        if (number + config.version) % 3 == 0:
            await lost(number, config)

    world.before_push = slow
    for version in range(2, 12):
        await put(world, pushes, at(version, 8, version % 8 + 1))
        await asyncio.sleep(0.07 * version)
    world.before_push = None
    await asyncio.sleep(60.0)
    for number in range(1, 8):
        versions = [version for reported, version in world.sent if reported == number]
        assert versions == sorted(versions)
    assert world.versions(8)[1:] == [11] * 7
    assert pushes.acknowledged == dict.fromkeys(range(1, 8), 11)


@on_virtual_time
async def test_a_new_configuration_is_pushed_at_once_to_partitions_that_wait_for_a_retry() -> None:
    world, pushes, _ = await make(read=2)
    world.before_push = lost
    await put(world, pushes, at(2, 2, 1))
    await asyncio.sleep(60.0)
    world.before_push = None
    world.sent.clear()
    await put(world, pushes, at(3, 2, 2))
    await pushes.tried()
    assert world.sent == [(1, 3)]
    assert pushes.acknowledged == {1: 3}
    await asyncio.sleep(60.0)
    assert world.sent == [(1, 3)]


@on_virtual_time
async def test_a_configuration_that_arrives_during_a_push_is_pushed_right_after_it() -> None:
    world, pushes, _ = await make(read=2)

    async def slow(number: int, config: PartitionConfig) -> None:
        await asyncio.sleep(1.0)

    world.after_push = slow
    await put(world, pushes, at(2, 2, 1))
    await asyncio.sleep(0.5)
    await put(world, pushes, at(3, 2, 2))
    await asyncio.sleep(0.6)
    assert world.sent == [(1, 2), (1, 3)]
    assert pushes.acknowledged == {1: 2}
    await asyncio.sleep(1.0)
    assert pushes.acknowledged == {1: 3}


@on_virtual_time
async def test_a_removed_partition_gets_pushes_until_it_acknowledges_and_none_afterwards() -> None:
    world, pushes, _ = await make(read=4)
    await put(world, pushes, at(2, 4, 2))
    await pushes.tried()
    world.members[3].is_up = False
    await put(world, pushes, at(3, 2))
    await pushes.tried()
    assert pushes.acknowledged == {1: 3, 3: 2}
    # After a further change, the removed partition still gets pushes.
    await put(world, pushes, at(4, 2, 1))
    await asyncio.sleep(20.0)
    world.members[3].is_up = True
    await asyncio.sleep(2 * RETRY_S_MAX)
    assert world.members[3].config == at(4, 2, 1)
    assert pushes.acknowledged == {1: 4}
    world.sent.clear()
    for _ in range(2 * REFRESHES_BETWEEN_REMINDERS):
        pushes.remind()
        await pushes.tried()
    assert {number for number, _ in world.sent} == {1}
    await put(world, pushes, at(5, 2))
    await pushes.tried()
    assert {number for number, _ in world.sent} == {1}


@on_virtual_time
async def test_a_check_pushes_to_all_partitions_without_a_known_acknowledgement() -> None:
    world, pushes, _ = await make(read=5)
    world.members[2].config = world.members[4].config = at(0, 1)
    pushes.remind()
    await pushes.tried()
    assert sorted(world.sent) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert world.versions(5) == [1] * 5


@on_virtual_time
async def test_each_partition_gets_a_reminder_at_fixed_intervals_even_if_it_has_acknowledged() -> None:
    """FL-20: a reminder repairs an acknowledgement by a host that is no longer the owner."""
    world, pushes, _ = await make(read=20)
    pushes.remind()
    await pushes.tried()
    world.sent.clear()
    world.members[7].config = at(0, 8)
    sent: list[int] = []
    for _ in range(REFRESHES_BETWEEN_REMINDERS):
        pushes.remind()
        await pushes.tried()
        sent.append(len(world.sent))
    assert sorted(world.sent) == [(number, 1) for number in range(1, 20)]
    assert world.versions(20) == [1] * 20
    # The reminders are spread over the checks.
    assert sent[0] <= math.ceil(19 / REFRESHES_BETWEEN_REMINDERS)


@on_virtual_time
async def test_a_partition_that_reports_an_old_version_gets_a_push_at_once() -> None:
    world, pushes, _ = await make(read=3)
    pushes.remind()
    await pushes.tried()
    world.sent.clear()
    pushes.note(1, Versions(1, 0))
    await pushes.tried()
    assert world.sent == []
    world.members[2].config = at(0, 3)
    pushes.note(2, Versions(0, 0))
    assert pushes.acknowledged[2] == 0
    await pushes.tried()
    assert world.sent == [(2, 1)]
    assert pushes.acknowledged == {1: 1, 2: 1}
    # The root itself needs no push.
    pushes.note(0, Versions(0, 0))
    await pushes.tried()
    assert world.sent == [(2, 1)]
    # A partition outside the counts gets a push, and its acknowledgement is not kept.
    pushes.note(3, Versions(0, 0))
    await pushes.tried()
    assert world.sent == [(2, 1), (3, 1)]
    assert pushes.acknowledged == {1: 1, 2: 1}


@on_virtual_time
async def test_the_number_of_concurrent_pushes_is_bounded() -> None:
    world, pushes, _ = await make(read=1)

    async def slow(number: int, config: PartitionConfig) -> None:
        await asyncio.sleep(0.01)

    world.before_push = slow
    await put(world, pushes, at(2, 10_000))
    await asyncio.sleep(0.1)
    await put(world, pushes, at(3, 10_000, 1))
    await pushes.tried()
    assert pushes.acknowledged == dict.fromkeys(range(1, 10_000), 3)
    assert world.under_way_most == PUSHES_AT_ONCE_MAX


def is_quiet(pushes: Pushes) -> bool:
    return pushes.is_quiet


@on_virtual_time
async def test_a_single_root_is_quiet_only_after_the_removed_partitions_have_acknowledged() -> None:
    world, pushes, _ = await make(read=1)
    assert is_quiet(pushes)
    await put(world, pushes, at(2, 2))
    assert not is_quiet(pushes)
    await pushes.tried()
    assert not is_quiet(pushes)
    world.before_push = first(1, lost)
    await put(world, pushes, at(3, 1))
    await pushes.tried()
    assert not is_quiet(pushes)
    await asyncio.sleep(1.0)
    assert is_quiet(pushes)


@on_virtual_time
async def test_no_push_is_sent_after_the_end() -> None:
    world, pushes, background = await make(read=3)
    world.before_push = lost
    await put(world, pushes, at(2, 3, 1))
    await pushes.tried()
    assert timers() == 2
    background.end()
    pushes.end()
    assert timers() == 0
    world.sent.clear()
    await put(world, pushes, at(3, 3))
    pushes.remind()
    pushes.note(1, Versions(0, 0))
    await pushes.tried()
    await asyncio.sleep(100.0)
    assert world.sent == []


@on_virtual_time
async def test_ending_from_within_a_push_lets_that_push_finish_and_starts_no_other() -> None:
    world, pushes, background = await make(read=1)
    seen: list[int] = []

    async def end(number: int, config: PartitionConfig) -> None:
        background.end()
        pushes.end()
        await background.ended()
        await asyncio.sleep(0.01)
        seen.append(number)
        await lost(number, config)

    world.before_push = first(1, end)
    await put(world, pushes, at(2, 1000))
    await asyncio.sleep(0.02)
    assert seen == [1]
    assert len(world.sent) <= PUSHES_AT_ONCE_MAX
    assert timers() == 0


@on_virtual_time
async def test_retry_pauses_double_up_to_a_bound_and_vary() -> None:
    """Without jitter, the roots of a thousand task queues would retry at the same moments after a failure."""
    world, _, background = await make(read=2)
    now_s = asyncio.get_running_loop().time
    pushed_s: list[float] = []

    async def refuse(number: int, config: PartitionConfig, rules: DispatchRules) -> Versions:
        pushed_s.append(now_s())
        raise StoreUnavailable("away")

    pushes = Pushes(
        refuse,
        at(1, 2),
        DispatchRules(),
        background=background,
        log=world.log,
        on_newer=world.newer.append,
        jitter=jitter_of("orders"),
    )
    pushes.notify(at(2, 2, 1), DispatchRules())
    await asyncio.sleep(60.0)
    longest_s = [min(RETRY_S_MIN * 2**retry, RETRY_S_MAX) for retry in range(len(pushed_s) - 1)]
    shares = [
        (after - before) / bound_s for (before, after), bound_s in zip(pairwise(pushed_s), longest_s, strict=True)
    ]
    assert len(shares) > 10
    assert 0.499 < min(shares) < 0.7
    assert 0.8 < max(shares) < 1.001
    background.end()
    pushes.end()
