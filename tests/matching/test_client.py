import asyncio
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.balancing import NotAPartition, Strategy
from fairlead.core.errors import GiveUp, RetryElsewhere, RetryLater
from fairlead.core.partitions import InvalidName, Partition, PartitionConfig, TaskQueueId, TaskType
from fairlead.core.routing import NoHosts
from fairlead.matching.client import FIRST_POLL_S, POLL_MARGIN_S, MatchingClient
from fairlead.matching.client_retries import AttemptLimits, PastDeadline
from fairlead.matching.engine import EngineClosed, NotOwner
from fairlead.matching.messages import PollRequest, QueueKind, StaleConfig
from fairlead.matching.partition.task_writer import AppendQueueFull, BacklogClosed
from fairlead.rpc.hosts.caller import CallLost, Overloaded, Unreachable
from fairlead.settings import DynamicSettings, Plain
from fairlead.simulations.virtual_loop import run
from fairlead.storage.tasks import LeaseLost, OutcomeUnknown, StoreUnavailable
from tests.matching.fake_matching import TASK_QUEUE, FakeMatching, FakeRing, new, now_s
from tests.simulators.matching.settings import ChangingSettings
from tests.virtual_time import on_virtual_time


class World:
    """A client with a fake service and ring. It knows the configuration already, unless it `is_new`."""

    def __init__(
        self,
        *,
        version: int = 1,
        read: int = 1,
        write: int = 1,
        hosts: tuple[str, ...] = ("a",),
        is_new: bool = False,
        overrides: dict[str, Plain] | None = None,
        limits: AttemptLimits | None = None,
        forced_read: int | None = None,
        forced_write: int | None = None,
    ) -> None:
        self.matching = FakeMatching(version=version, read=read, write=write)
        self.matching.owners = {number: hosts[number % len(hosts)] for number in range(64)}
        self.ring = FakeRing(self.matching, *hosts)
        self.settings = ChangingSettings(overrides=overrides)
        self.client = MatchingClient(
            self.matching,
            self.ring,
            settings=self.settings,
            clock=now_s,
            random=Random(1).random,
            limits=limits,
            forced_read=forced_read,
            forced_write=forced_write,
        )
        if not is_new:
            self.client._configs.accept(TASK_QUEUE, self.matching.config)

    @property
    def known(self) -> PartitionConfig | None:
        return self.client._configs.find(TASK_QUEUE)

    def outstanding(self, partitions: int) -> list[int]:
        """The number of polls that the balancer counts as waiting at each partition."""
        counts = self.client._balancer._outstanding.counts(TASK_QUEUE, partitions)
        return [counts.outstanding(number) for number in range(partitions)]


def with_strategy(strategy: Strategy) -> dict[str, Plain]:
    return {"system.tasklistLoadBalancerStrategy": strategy.value}


# Choice of the partition


@on_virtual_time
async def test_a_new_client_asks_the_root_and_learns_the_configuration_from_the_response() -> None:
    """FL-22, SC-6: the first call goes to the root, and its response carries the configuration."""
    world = World(read=4, write=4, is_new=True)
    for number in range(9):
        await world.client.add(TASK_QUEUE, new(str(number)))
    assert world.matching.asked[0] == 0
    assert Counter(world.matching.asked[1:]) == {0: 2, 1: 2, 2: 2, 3: 2}
    sent = [made.request.config for made in world.matching.made]
    assert sent == [None] + 8 * [PartitionConfig(1, 4, 4)]


@on_virtual_time
async def test_tasks_go_to_write_partitions_and_polls_to_read_partitions() -> None:
    """TQ-7: partitions that get no new tasks are still read."""
    world = World(read=4, write=2)
    for number in range(20):
        await world.client.add(TASK_QUEUE, new(str(number)))
    assert set(world.matching.asked) == {0, 1}
    world.matching.tasks = {number: [b"task"] * 20 for number in range(4)}
    world.matching.made.clear()
    for _ in range(20):
        await world.client.poll(TASK_QUEUE, "worker", timeout_s=5)
    assert set(world.matching.asked) == {0, 1, 2, 3}


@on_virtual_time
async def test_each_request_goes_to_the_owner_of_its_partition() -> None:
    """MC-16."""
    world = World(read=4, write=4, hosts=("a", "b"))
    for number in range(8):
        await world.client.add(TASK_QUEUE, new(str(number)))
    assert {(made.request.partition.number, made.host) for made in world.matching.made} == {
        (0, "a"),
        (1, "b"),
        (2, "a"),
        (3, "b"),
    }
    assert [world.client.route(Partition(TASK_QUEUE, number)) for number in range(3)] == ["a", "b", "a"]


@on_virtual_time
async def test_a_sticky_task_queue_has_one_partition_and_no_configuration() -> None:
    world = World(read=4, write=4)
    for number in range(8):
        await world.client.add(TASK_QUEUE, new(str(number)), kind=QueueKind.STICKY)
        await world.client.poll(TASK_QUEUE, "worker", timeout_s=5, kind=QueueKind.STICKY)
    assert set(world.matching.asked) == {0}
    for made in world.matching.made:
        assert made.request.kind is QueueKind.STICKY
        assert made.request.config is None


@on_virtual_time
async def test_a_sticky_poll_is_a_single_call_and_gives_the_client_no_configuration() -> None:
    world = World(read=4, write=4, is_new=True)
    answer = await world.client.poll(TASK_QUEUE, "worker", timeout_s=5, kind=QueueKind.STICKY)
    assert answer.task is None
    assert [made.request.timeout_s for made in world.matching.made] == [5.0]
    await world.client.add(TASK_QUEUE, new("task"), kind=QueueKind.STICKY)
    assert world.known is None


@pytest.mark.parametrize("strategy", Strategy)
def test_a_client_can_be_forced_to_use_one_partition(strategy: Strategy) -> None:
    """MC-4."""

    async def main() -> None:
        world = World(read=4, write=4, overrides=with_strategy(strategy), forced_read=2, forced_write=3)
        for number in range(5):
            await world.client.add(TASK_QUEUE, new(str(number)))
        assert set(world.matching.asked) == {3}
        world.matching.made.clear()
        for _ in range(5):
            await world.client.poll(TASK_QUEUE, "worker", timeout_s=1)
        assert set(world.matching.asked) == {2}

    run(main())


@on_virtual_time
async def test_a_forced_partition_that_does_not_exist_is_rejected_once_the_configuration_is_known() -> None:
    world = World(read=4, write=4, is_new=True, forced_write=4)
    await world.client.add(TASK_QUEUE, new("learns"))
    with pytest.raises(NotAPartition, match="partition 4 is forced"):
        await world.client.add(TASK_QUEUE, new("forced"))
    assert world.matching.asked == [0]


@on_virtual_time
async def test_weighted_polls_follow_the_backlogs_that_partitions_report() -> None:
    """TQ-15: polls are weighted by backlog if a partition holds more than 100 tasks."""
    world = World(read=4, write=4)
    world.matching.backlogs = {0: 0, 1: 0, 2: 9000, 3: 1000}
    # The first polls go to all partitions in turn, so all partitions report.
    await asyncio.gather(*(world.client.poll(TASK_QUEUE, "worker", timeout_s=5) for _ in range(4)))
    assert sorted(world.matching.asked) == [0, 1, 2, 3]
    world.matching.tasks = {number: [b"task"] * 1000 for number in range(4)}
    world.matching.made.clear()
    for _ in range(1000):
        await world.client.poll(TASK_QUEUE, "worker", timeout_s=5)
    polls = Counter(world.matching.asked)
    # A tenth of the polls is spread evenly over all partitions.
    assert polls[2] == pytest.approx(835, abs=50)
    assert polls[3] == pytest.approx(115, abs=40)
    assert polls[0] > 0
    assert polls[1] > 0


@on_virtual_time
async def test_an_empty_response_reports_the_backlog_too() -> None:
    world = World(read=2, write=2)
    world.matching.backlogs = {0: 0, 1: 5000}
    for _ in range(2):
        assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=0.5)).task is None
    world.matching.made.clear()
    for _ in range(50):
        await world.client.poll(TASK_QUEUE, "worker", timeout_s=0.5)
    assert Counter(world.matching.asked)[1] > 40


@on_virtual_time
async def test_an_invalid_backlog_report_does_not_lose_the_task_of_its_response() -> None:
    world = World(read=2, write=2)
    world.matching.backlogs = dict.fromkeys(range(2), float("nan"))
    world.matching.tasks = {0: [b"task"] * 2, 1: [b"task"] * 2}
    for _ in range(4):
        assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=5)).task == b"task"


@on_virtual_time
async def test_the_settings_of_weighted_selection_can_change_at_run_time() -> None:
    world = World(read=2, write=2)
    world.settings.change({"matching.weightedBacklogThreshold": 1e9})
    world.matching.backlogs = {0: 0, 1: 5000}
    world.matching.tasks = {number: [b"task"] * 200 for number in range(2)}
    for _ in range(100):
        await world.client.poll(TASK_QUEUE, "worker", timeout_s=5)
    assert Counter(world.matching.asked) == {0: 50, 1: 50}


@on_virtual_time
async def test_a_new_poll_goes_to_the_partition_with_the_fewest_waiting_polls() -> None:
    """MC-2."""
    world = World(read=4, write=4, overrides=with_strategy(Strategy.FEWEST_OUTSTANDING_POLLS))
    polls = [asyncio.create_task(world.client.poll(TASK_QUEUE, "worker", timeout_s=60)) for _ in range(12)]
    await asyncio.sleep(1)
    assert world.outstanding(4) == [3, 3, 3, 3]
    world.matching.tasks = {2: [b"task"] * 3}
    await asyncio.sleep(1)
    assert world.outstanding(4) == [3, 3, 0, 3]
    world.matching.made.clear()
    polls += [asyncio.create_task(world.client.poll(TASK_QUEUE, "worker", timeout_s=60)) for _ in range(3)]
    await asyncio.sleep(1)
    assert world.matching.asked == [2, 2, 2]
    await asyncio.gather(*polls)


# Outdated configurations


@on_virtual_time
async def test_a_stale_configuration_is_replaced_and_the_add_retried_at_once() -> None:
    """FL-21: the error carries the new configuration, and no task is lost."""
    world = World(read=4, write=4)
    world.matching.config = PartitionConfig(2, 4, 1)
    for number in range(20):
        answer = await world.client.add(TASK_QUEUE, new(f"{number:02}"))
        assert answer.config == PartitionConfig(2, 4, 1)
    assert world.matching.stored == [f"{number:02}".encode() for number in range(20)]
    assert world.matching.tasks.keys() == {0}
    assert now_s() == 0.0
    assert world.ring.refreshes == []
    # At most one add failed, because its error carried the new configuration.
    assert len(world.matching.made) <= 21


@on_virtual_time
async def test_a_poll_of_a_partition_that_is_no_longer_read_moves_to_a_read_partition() -> None:
    world = World(read=4, write=1, forced_write=0)
    world.matching.config = PartitionConfig(2, 1, 1)
    world.matching.tasks[0] = [b"task"] * 8
    for _ in range(8):
        assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=60)).task == b"task"
    assert now_s() == 0.0


@on_virtual_time
async def test_a_client_with_a_newer_configuration_than_the_partition_goes_to_the_root() -> None:
    """The root takes every task and poll. The client keeps its newer configuration."""
    world = World(version=9, read=4, write=4, forced_read=3, forced_write=3)
    world.matching.config = PartitionConfig(2, 1, 1)
    world.matching.reported = PartitionConfig(2, 1, 1)
    await world.client.add(TASK_QUEUE, new("task"))
    assert world.matching.asked == [3, 0]
    # The request informs the root that a newer version is in use.
    assert world.matching.made[1].request.config == PartitionConfig(9, 4, 4)
    assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=60)).task == b"task"
    assert world.matching.asked == [3, 0, 3, 0]
    assert now_s() == 0.0
    assert world.known == PartitionConfig(9, 4, 4)


@on_virtual_time
async def test_repeated_stale_configuration_errors_end_after_the_maximum_of_attempts() -> None:
    world = World(read=64, write=64, limits=AttemptLimits(attempts_max=7))
    world.matching.failures.extend(
        StaleConfig(f"version {version}", PartitionConfig(version, 64, 64)) for version in range(2, 50)
    )
    with pytest.raises(StaleConfig, match="version 8"):
        await world.client.add(TASK_QUEUE, new("refused"))
    assert len(world.matching.made) == 7
    # The first three retries are immediate; the pauses before the others grow.
    moments = [made.at_s for made in world.matching.made]
    assert moments[:4] == [0.0, 0.0, 0.0, 0.0]
    assert all(later > earlier for earlier, later in pairwise(moments[3:]))
    assert world.matching.stored == []


@on_virtual_time
async def test_responses_out_of_order_never_lower_the_configuration_version() -> None:
    world = World(read=1, write=1)
    world.matching.config = PartitionConfig(9, 1, 1)
    for version, believed in [(4, 4), (2, 4), (4, 4), (7, 7), (1, 7), (6, 7), (8, 8)]:
        world.matching.reported = PartitionConfig(version, 1, 1)
        await world.client.add(TASK_QUEUE, new("task"))
        known = world.known
        assert known is not None
        assert known.version == believed
        await world.client.poll(TASK_QUEUE, "worker", timeout_s=5)
        assert world.known == known


@pytest.mark.sim
@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.sampled_from(["add", "poll", "grow", "shrink write", "shrink read", "move"]), max_size=40),
)
def test_every_task_is_added_and_polled_at_valid_partitions_during_changes(seed: int, steps: list[str]) -> None:
    """SC-1, FL-19, FL-21."""

    async def main() -> None:
        random = Random(seed)
        world = World(read=2, write=2, hosts=("a", "b", "c"), is_new=True)
        matching = world.matching
        added, got, newest = [], [], 0
        for step, what in enumerate(steps):
            config = matching.config
            if what == "add":
                answer = await world.client.add(TASK_QUEUE, new(f"{step:02}"))
                added.append(f"{step:02}".encode())
                assert answer.config == config
                assert all(number < config.read or not tasks for number, tasks in matching.tasks.items())
            elif what == "poll" and matching.stored:
                # Every read partition offers the first task, because forwarding would bring it to any of them.
                everything = matching.stored
                matching.tasks = {number: [everything[0]] for number in range(config.read)}
                task = (await world.client.poll(TASK_QUEUE, "worker", timeout_s=60)).task
                assert task == everything[0]
                got.append(task)
                matching.tasks = {0: everything[1:]}
            elif what == "grow":
                more = min(64, config.write + random.randint(1, 4))
                matching.config = PartitionConfig(config.version + 1, max(more, config.read), more)
            elif what == "shrink write":
                fewer = random.randint(1, config.write)
                matching.config = PartitionConfig(config.version + 1, config.read, fewer)
            elif what == "shrink read":
                matching.tasks = {0: matching.stored}
                matching.config = PartitionConfig(config.version + 1, config.write, config.write)
            elif what == "move":
                matching.owners = {number: random.choice("abc") for number in range(64)}
            known = world.known
            if known is not None:
                assert newest <= known.version <= matching.config.version
                newest = known.version
        assert sorted(got + matching.stored) == sorted(added)

    run(main())


# Dead hosts and other failures


@on_virtual_time
async def test_a_not_owner_error_refreshes_the_ring_and_the_new_owner_is_asked() -> None:
    """MC-5, FL-16: a host rejects a call for a partition that it doesn't own."""
    world = World(hosts=("a", "b"))
    world.matching.owners = {0: "b"}
    world.matching.tasks[0] = [b"waits"]
    assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=60)).task == b"waits"
    assert [made.host for made in world.matching.made] == ["a", "b"]
    assert len(world.ring.refreshes) == 1
    world.matching.owners = {0: "a"}
    await world.client.add(TASK_QUEUE, new("task"))
    assert [made.host for made in world.matching.made[2:]] == ["b", "a"]
    assert world.matching.stored == [b"task"]
    assert now_s() < 0.1


@on_virtual_time
async def test_the_client_leaves_a_dead_host_as_soon_as_the_ring_has_a_new_owner() -> None:
    world = World(hosts=("a", "b"))
    world.matching.dead = {"a"}

    async def take_over() -> None:
        await asyncio.sleep(5)
        world.matching.owners = {0: "b"}

    takeover = asyncio.create_task(take_over())
    await world.client.add(TASK_QUEUE, new("task"), timeout_s=10)
    assert world.matching.stored == [b"task"]
    assert 5 <= now_s() < 6.1
    # Pauses grow to one second, because many clients retry at once when a host dies.
    assert len(world.matching.made) < 16
    await takeover


@on_virtual_time
async def test_a_retry_may_choose_another_partition() -> None:
    """FL-23: a retry chooses a partition again."""
    world = World(read=4, write=4, hosts=("dead", "b"))
    world.matching.dead = {"dead"}
    for number in range(10):
        await world.client.add(TASK_QUEUE, new(str(number)))
    assert len(world.matching.stored) == 10
    assert now_s() < 1


@on_virtual_time
async def test_a_silent_host_does_not_use_up_the_whole_timeout() -> None:
    world = World(read=2, write=2, hosts=("silent", "b"))
    world.matching.silent = {"silent"}
    for number in range(4):
        await world.client.add(TASK_QUEUE, new(str(number)), timeout_s=10)
    assert len(world.matching.stored) == 4
    assert {made.timeout_s for made in world.matching.made} == {3.0}
    began_s = now_s()
    world.matching.made.clear()
    for number in range(2):
        await world.client.add(TASK_QUEUE, new(str(number)), timeout_s=1)
    assert max(made.timeout_s for made in world.matching.made) == 0.5
    # The silent host takes at most half of each timeout.
    assert now_s() - began_s < 2 * 0.6


@on_virtual_time
async def test_an_add_ends_at_its_deadline_with_the_last_failure() -> None:
    world = World()
    world.matching.silent = {"a"}
    with pytest.raises(CallLost, match="a is silent"):
        await world.client.add(TASK_QUEUE, new("lost"), timeout_s=7)
    assert 6 < now_s() <= 7
    assert all(made.at_s + made.timeout_s <= 7 for made in world.matching.made)
    world.matching.silent.clear()
    world.matching.dead = {"a"}
    began_s = now_s()
    with pytest.raises(Unreachable, match="a is dead"):
        await world.client.add(TASK_QUEUE, new("lost"), timeout_s=7)
    assert 5.9 < now_s() - began_s <= 7


@on_virtual_time
async def test_a_timeout_error_carries_the_failure_of_the_attempt_before() -> None:
    world = World(hosts=("a", "b"))
    world.matching.owners = {0: "b"}
    world.ring.refresh_takes_s = 1.5
    world.matching.silent = {"b"}
    with pytest.raises(CallLost, match="b is silent") as raised:
        await world.client.add(TASK_QUEUE, new("lost"), timeout_s=2)
    assert raised.value.__notes__ == ["the previous attempt failed as well: NotOwner: 0 is not owned by a"]
    assert now_s() == 2.0


@on_virtual_time
async def test_the_deadline_holds_even_if_the_ring_refresh_hangs() -> None:
    world = World(hosts=("a", "b"))
    world.matching.owners = {0: "b"}
    world.ring.refresh_takes_s = 100.0
    with pytest.raises(NotOwner):
        await world.client.add(TASK_QUEUE, new("lost"), timeout_s=2)
    assert now_s() == 2.0
    # No time is left for a second attempt.
    assert len(world.matching.made) == 1


@on_virtual_time
async def test_the_number_of_attempts_is_bounded() -> None:
    world = World(limits=AttemptLimits(attempts_max=4))
    world.matching.dead = {"a"}
    with pytest.raises(Unreachable):
        await world.client.add(TASK_QUEUE, new("lost"), timeout_s=1000)
    assert len(world.matching.made) == 4
    world.matching.made.clear()
    with pytest.raises(Unreachable):
        await world.client.poll(TASK_QUEUE, "worker", timeout_s=60)
    assert len(world.matching.made) == 4


@pytest.mark.parametrize(
    ("failure", "is_ring_in_doubt"),
    [
        (NotOwner("elsewhere"), True),
        (LeaseLost("elsewhere"), True),
        (Unreachable("gone"), True),
        (RetryElsewhere("of another release"), True),
        (CallLost("no answer"), True),
        (EngineClosed("closing"), True),
        (BacklogClosed("unloading"), True),
        (RetryLater("of another release"), True),
        (StoreUnavailable("away"), False),
        (OutcomeUnknown("perhaps"), False),
    ],
)
def test_temporary_failures_are_retried(failure: Exception, is_ring_in_doubt: bool) -> None:
    async def main() -> None:
        world = World()
        world.matching.failures.append(failure)
        await world.client.add(TASK_QUEUE, new("task"))
        # After a lost response the client can't know whether the add succeeded: the task may be stored twice.
        assert world.matching.stored == [b"task"] * (2 if isinstance(failure, CallLost) else 1)
        assert len(world.ring.refreshes) == is_ring_in_doubt
        assert 0 < now_s() < 0.1
        world.matching.failures.append(failure)
        world.matching.tasks[0] = [b"task"] * 2
        assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=60)).task == b"task"
        assert len(world.matching.made) == 4

    run(main())


@pytest.mark.parametrize(
    "failure",
    [AppendQueueFull("full"), Overloaded("full"), GiveUp("broken"), InvalidName("bad"), ValueError("a fault")],
)
def test_permanent_failures_are_raised_at_once(failure: Exception) -> None:
    async def main() -> None:
        world = World(read=4, write=4)
        world.matching.failures.extend([failure, failure])
        with pytest.raises(type(failure)) as raised:
            await world.client.add(TASK_QUEUE, new("task"))
        assert raised.value is failure
        with pytest.raises(type(failure)):
            await world.client.poll(TASK_QUEUE, "worker", timeout_s=60)
        assert len(world.matching.made) == 2
        assert (now_s(), world.ring.refreshes) == (0.0, [])

    run(main())


@on_virtual_time
async def test_the_client_waits_for_an_empty_ring_to_be_refreshed() -> None:
    world = World()
    world.ring.is_empty = True
    await world.client.add(TASK_QUEUE, new("task"))
    assert world.matching.stored == [b"task"]
    world.ring.is_empty = True
    world.ring.refresh_takes_s = 100.0
    with pytest.raises(NoHosts):
        await world.client.add(TASK_QUEUE, new("task"), timeout_s=1)


@on_virtual_time
async def test_an_invalid_task_queue_name_is_rejected() -> None:
    world = World()
    world.matching.failures.append(AssertionError("asked"))
    for name in ("", "/_sys/orders/1"):
        with pytest.raises(InvalidName):
            await world.client.add(TaskQueueId("namespace", name, TaskType.ACTIVITY), new("task"))
        with pytest.raises(InvalidName):
            await world.client.poll(TaskQueueId("namespace", name, TaskType.ACTIVITY), "worker", timeout_s=5)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_a_request_without_time_left_is_rejected(timeout_s: float) -> None:
    async def main() -> None:
        world = World()
        with pytest.raises(PastDeadline, match="give more than 0"):
            await world.client.add(TASK_QUEUE, new("task"), timeout_s=timeout_s)
        with pytest.raises(PastDeadline, match="give more than 0"):
            await world.client.poll(TASK_QUEUE, "worker", timeout_s=timeout_s)
        assert world.matching.made == []

    run(main())


# Polls


@on_virtual_time
async def test_the_timeout_of_a_poll_call_is_longer_than_the_poll() -> None:
    world = World()
    answer = await world.client.poll(TASK_QUEUE, "worker", timeout_s=20, rate_per_s=7.5)
    assert answer.task is None
    assert now_s() == 20.0
    (made,) = world.matching.made
    assert made.timeout_s == 20.0 + POLL_MARGIN_S
    request = made.request
    assert isinstance(request, PollRequest)
    assert (request.identity, request.timeout_s, request.rate_per_s) == ("worker", 20.0, 7.5)


@on_virtual_time
async def test_a_poll_is_limited_to_the_long_poll_interval() -> None:
    world = World(overrides={"matching.longPollExpirationInterval": "30s"})
    assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=1000)).task is None
    assert now_s() == 30.0


@on_virtual_time
async def test_every_poll_attempt_has_a_unique_id() -> None:
    worlds = [World(read=2, write=2, forced_read=0) for _ in range(2)]
    worlds[1].client = MatchingClient(
        worlds[1].matching, worlds[1].ring, settings=DynamicSettings(), clock=now_s, random=Random(2).random
    )
    for world in worlds:
        world.matching.failures.append(NotOwner("once"))
        for _ in range(3):
            await world.client.poll(TASK_QUEUE, "worker", timeout_s=0.5)
    ids = [made.request.poll_id for world in worlds for made in world.matching.made]
    assert len(ids) == len(set(ids)) == 8


@on_virtual_time
async def test_polls_of_a_new_client_soon_spread_over_all_partitions() -> None:
    """FL-22: a starting worker's first poll at the root is short."""
    world = World(read=4, write=4, is_new=True)
    polls = [asyncio.create_task(world.client.poll(TASK_QUEUE, "worker", timeout_s=60)) for _ in range(8)]
    await asyncio.sleep(FIRST_POLL_S + 0.1)
    assert Counter(world.matching.asked[:8]) == {0: 8}
    assert Counter(world.matching.asked[8:]) == {0: 2, 1: 2, 2: 2, 3: 2}
    await asyncio.gather(*polls)
    assert now_s() == 60.0
    assert len(world.matching.made) == 16


@on_virtual_time
async def test_a_poll_stays_at_the_root_if_the_response_has_no_configuration() -> None:
    """Version 0: the counts are those of the host's settings, which the client must not rely on."""
    world = World(version=0, read=4, write=4, is_new=True)
    assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=60)).task is None
    assert [(made.request.partition.number, made.request.timeout_s) for made in world.matching.made] == [
        (0, FIRST_POLL_S),
        (0, 60.0 - FIRST_POLL_S),
    ]


@on_virtual_time
async def test_the_first_poll_of_a_new_client_can_return_a_task() -> None:
    world = World(read=4, write=4, is_new=True)
    world.matching.tasks[0] = [b"task"]
    assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=60)).task == b"task"
    assert len(world.matching.made) == 1


@pytest.mark.parametrize("timeout_s", [FIRST_POLL_S, FIRST_POLL_S / 2])
def test_a_short_poll_of_a_new_client_is_a_single_call(timeout_s: float) -> None:
    async def main() -> None:
        world = World(read=4, write=4, is_new=True)
        assert (await world.client.poll(TASK_QUEUE, "worker", timeout_s=timeout_s)).task is None
        assert len(world.matching.made) == 1
        assert now_s() == timeout_s

    run(main())


@on_virtual_time
async def test_a_poll_whose_host_dies_continues_at_the_new_owner_until_its_timeout() -> None:
    world = World(hosts=("a", "b"))
    poll = asyncio.create_task(world.client.poll(TASK_QUEUE, "worker", timeout_s=60))
    await asyncio.sleep(20)
    world.matching.dead = {"a"}
    await asyncio.sleep(5)
    world.matching.owners = {0: "b"}
    assert (await poll).task is None
    assert now_s() == pytest.approx(60.0)
    last = world.matching.made[-1]
    assert last.host == "b"
    assert last.at_s < 27
    assert last.at_s + last.request.timeout_s == pytest.approx(60.0)


COUNTED = [Strategy.WEIGHTED, Strategy.FEWEST_OUTSTANDING_POLLS]


@pytest.mark.parametrize("strategy", COUNTED)
def test_a_poll_counts_as_outstanding_until_its_response(strategy: Strategy) -> None:
    async def main() -> None:
        world = World(read=2, write=2, overrides=with_strategy(strategy))
        polls = [asyncio.create_task(world.client.poll(TASK_QUEUE, "worker", timeout_s=60)) for _ in range(4)]
        await asyncio.sleep(1)
        assert world.outstanding(2) == [2, 2]
        world.matching.tasks = {0: [b"task"]}
        await asyncio.sleep(1)
        assert world.outstanding(2) == [1, 2]
        await asyncio.gather(*polls)
        assert world.outstanding(2) == [0, 0]

    run(main())


@pytest.mark.parametrize("strategy", COUNTED)
def test_a_cancelled_poll_is_cancelled_at_its_host_and_no_longer_counted(strategy: Strategy) -> None:
    """FL-7, FL-10: the client stops counting a cancelled poll, and its host gives the task back."""

    async def main() -> None:
        world = World(read=2, write=2, overrides=with_strategy(strategy))
        poll = asyncio.create_task(world.client.poll(TASK_QUEUE, "worker", timeout_s=60))
        await asyncio.sleep(1)
        assert (world.matching.waiting, sum(world.outstanding(2))) == (1, 1)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        assert (world.matching.waiting, sum(world.outstanding(2))) == (0, 0)

    run(main())


@pytest.mark.parametrize("strategy", COUNTED)
@pytest.mark.parametrize(
    "failure", [NotOwner("moved"), CallLost("lost"), GiveUp("broken"), StoreUnavailable("away"), ValueError("fault")]
)
def test_a_failed_poll_is_not_counted_while_it_waits_for_a_retry(strategy: Strategy, failure: Exception) -> None:
    async def main() -> None:
        world = World(read=2, write=2, overrides=with_strategy(strategy))
        world.ring.refresh_takes_s = 5.0
        world.matching.tasks = {number: [b"task"] * 2 for number in range(2)}
        world.matching.failures.append(failure)
        poll = asyncio.create_task(world.client.poll(TASK_QUEUE, "worker", timeout_s=60))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(world.matching.made) == 1
        assert sum(world.outstanding(2)) == 0
        await asyncio.gather(poll, return_exceptions=True)
        assert sum(world.outstanding(2)) == 0

    run(main())


@pytest.mark.parametrize("strategy", COUNTED)
def test_a_poll_without_a_host_is_not_counted(strategy: Strategy) -> None:
    async def main() -> None:
        world = World(read=2, write=2, overrides=with_strategy(strategy))
        world.ring.is_empty = True
        world.ring.refresh_takes_s = 100.0
        with pytest.raises(NoHosts):
            await world.client.poll(TASK_QUEUE, "worker", timeout_s=5)
        assert world.outstanding(2) == [0, 0]

    run(main())
