"""Seed 001, "Migrating Configuration to the Database": updates propagate to non-root partitions by push."""

import asyncio
import math

from fairlead.core.partitions import PartitionConfig
from fairlead.matching.background import Background
from fairlead.matching.pushes import (
    LOOKS_BETWEEN_REMINDERS,
    PUSH_S_MAX,
    PUSHES_AT_ONCE_MAX,
    RETRY_S_MAX,
    RETRY_S_MIN,
    Pushes,
    retry_pause_s,
)
from tests.matching.root_world import ROOT, World, first, lost, on_virtual_time, timers


def at(version: int, read: int, write: int | None = None) -> PartitionConfig:
    return PartitionConfig(version=version, read=read, write=write or read)


async def make(*, read: int, version: int = 1) -> tuple[World, Pushes, Background]:
    world = await World.make(read=read, write=read, version=version)
    background = Background(world.log)
    return world, Pushes(world.push, at(version, read), background=background, log=world.log), background


async def put(world: World, pushes: Pushes, config: PartitionConfig) -> None:
    await world.store.save_config(ROOT, world.lease.range_id, config)
    pushes.tell(config)


@on_virtual_time
async def test_a_change_is_told_to_all_who_were_read_before_or_are_now_but_not_to_the_root() -> None:
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
async def test_a_push_is_repeated_until_it_is_acknowledged_and_then_no_more() -> None:
    world, pushes, _ = await make(read=2)
    world.before_push = first(3, lost)
    await put(world, pushes, at(2, 2, 1))
    await asyncio.sleep(10 * RETRY_S_MIN)
    assert world.sent == [(1, 2)] * 4
    assert pushes.acknowledged == {1: 2}
    await asyncio.sleep(1000.0)
    assert len(world.sent) == 4


@on_virtual_time
async def test_an_acknowledgement_that_is_lost_is_asked_for_again() -> None:
    world, pushes, _ = await make(read=2)
    world.after_push = first(1, lost)
    await put(world, pushes, at(2, 2, 1))
    await pushes.tried()
    assert pushes.acknowledged == {}
    await asyncio.sleep(RETRY_S_MIN)
    await pushes.tried()
    assert pushes.acknowledged == {1: 2}


@on_virtual_time
async def test_a_push_that_hangs_is_given_up_and_repeated_and_holds_up_nobody_else() -> None:
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
async def test_a_partition_that_says_it_goes_by_an_older_version_has_not_acknowledged() -> None:
    """Nor is it told again without a pause: that would be a busy loop."""
    world, pushes, background = await make(read=2)

    async def refuse(number: int, config: PartitionConfig) -> int:
        world.sent.append((number, config.version))
        return config.version - 1

    pushes = Pushes(refuse, at(1, 2), background=background, log=world.log)
    pushes.tell(at(2, 2, 1))
    await asyncio.sleep(3600.0)
    assert pushes.acknowledged == {}
    assert 3600.0 / RETRY_S_MAX <= len(world.sent) <= 3600.0 / RETRY_S_MAX + 20
    background.end()
    pushes.end()


@on_virtual_time
async def test_a_partition_that_goes_by_a_newer_version_needs_no_push() -> None:
    world, pushes, _ = await make(read=2)
    world.members[1].config = at(7, 2)
    await put(world, pushes, at(2, 2, 1))
    await asyncio.sleep(100.0)
    assert world.sent == [(1, 2)]
    assert pushes.acknowledged == {1: 7}


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
        versions = [version for told, version in world.sent if told == number]
        assert versions == sorted(versions)
    assert world.versions(8)[1:] == [11] * 7
    assert pushes.acknowledged == dict.fromkeys(range(1, 8), 11)


@on_virtual_time
async def test_news_come_at_once_to_those_that_wait_for_their_retry() -> None:
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
async def test_a_configuration_that_came_during_a_push_is_told_right_after_it() -> None:
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
async def test_a_partition_that_went_away_is_told_until_it_acknowledges_and_then_forgotten() -> None:
    world, pushes, _ = await make(read=4)
    await put(world, pushes, at(2, 4, 2))
    await pushes.tried()
    world.members[3].is_up = False
    await put(world, pushes, at(3, 2))
    await pushes.tried()
    assert pushes.acknowledged == {1: 3, 3: 2}
    # A further change does not make it forgotten.
    await put(world, pushes, at(4, 2, 1))
    await asyncio.sleep(20.0)
    world.members[3].is_up = True
    await asyncio.sleep(2 * RETRY_S_MAX)
    assert world.members[3].config == at(4, 2, 1)
    assert pushes.acknowledged == {1: 4}
    world.sent.clear()
    for _ in range(2 * LOOKS_BETWEEN_REMINDERS):
        pushes.look_again()
        await pushes.tried()
    assert {number for number, _ in world.sent} == {1}
    await put(world, pushes, at(5, 2))
    await pushes.tried()
    assert {number for number, _ in world.sent} == {1}


@on_virtual_time
async def test_a_look_tells_those_who_are_not_known_to_have_acknowledged() -> None:
    world, pushes, _ = await make(read=5)
    world.members[2].config = world.members[4].config = at(0, 1)
    pushes.look_again()
    await pushes.tried()
    assert sorted(world.sent) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert world.versions(5) == [1] * 5


@on_virtual_time
async def test_each_partition_is_reminded_once_in_so_many_looks_even_if_it_has_acknowledged() -> None:
    """Facts on Cadence, invariant 7: what a partition that is no owner any more acknowledged heals as well."""
    world, pushes, _ = await make(read=20)
    pushes.look_again()
    await pushes.tried()
    world.sent.clear()
    world.members[7].config = at(0, 8)
    sent: list[int] = []
    for _ in range(LOOKS_BETWEEN_REMINDERS):
        pushes.look_again()
        await pushes.tried()
        sent.append(len(world.sent))
    assert sorted(world.sent) == [(number, 1) for number in range(1, 20)]
    assert world.versions(20) == [1] * 20
    # And not all of them at the same look.
    assert sent[0] <= math.ceil(19 / LOOKS_BETWEEN_REMINDERS)


@on_virtual_time
async def test_a_partition_that_is_heard_to_be_behind_is_told_at_once() -> None:
    world, pushes, _ = await make(read=3)
    pushes.look_again()
    await pushes.tried()
    world.sent.clear()
    pushes.note(1, 1)
    await pushes.tried()
    assert world.sent == []
    world.members[2].config = at(0, 3)
    pushes.note(2, 0)
    assert pushes.acknowledged[2] == 0
    await pushes.tried()
    assert world.sent == [(2, 1)]
    assert pushes.acknowledged == {1: 1, 2: 1}
    # The root itself, and those that are not read, are nobody to be told.
    pushes.note(0, 0)
    pushes.note(3, 0)
    await pushes.tried()
    assert world.sent == [(2, 1)]
    assert pushes.acknowledged == {1: 1, 2: 1}


@on_virtual_time
async def test_thousands_of_partitions_are_told_with_few_pushes_at_once() -> None:
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
async def test_a_root_that_is_alone_is_quiet_but_not_before_the_others_have_heard_of_it() -> None:
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
async def test_nobody_is_told_anything_after_the_end() -> None:
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
    pushes.look_again()
    pushes.note(1, 0)
    await pushes.tried()
    await asyncio.sleep(100.0)
    assert world.sent == []


@on_virtual_time
async def test_an_end_from_within_a_push_lets_that_push_go_on_and_begins_no_other() -> None:
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


def test_pauses_double_up_to_a_bound_however_often_it_has_failed() -> None:
    assert retry_pause_s(1) == RETRY_S_MIN
    assert retry_pause_s(2) == 2 * RETRY_S_MIN
    assert retry_pause_s(10_000_000) == RETRY_S_MAX
