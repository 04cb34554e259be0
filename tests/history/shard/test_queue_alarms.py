"""A queue of timers wakes only as often as there is work."""

import asyncio
import time
from collections.abc import Callable

import uvloop

from fairlead.history.shard.queue import ShardQueue
from fairlead.history.state.tasks import QueueRow, RunTimeout
from fairlead.storage.memory.history import MemoryHistory
from tests.virtual_time import on_virtual_time

SECOND_NS = 1_000_000_000
TIMERS = 60
# Maximum number of clock reads for each timer: to set the alarm and to find due timers, when the timer becomes the
# first, when it is due, and when it is done.
CLOCK_READS_A_TIMER_MAX = 6


async def _clock_reads(clock_ns: Callable[[], int], gap_ns: int) -> int:
    """The number of clock reads until all `TIMERS` have fired."""
    reads = 0
    done = 0

    def counted_ns() -> int:
        nonlocal reads
        reads += 1
        return clock_ns()

    async def fire(row: QueueRow) -> None:
        nonlocal done
        done += 1
        # Give up control once, like a task that waits for the lock of its run.
        await asyncio.sleep(0)

    queue = ShardQueue(
        "timer",
        shard_id=1,
        store=MemoryHistory(),
        run=fire,
        clock_ns=counted_ns,
        range_id=lambda: 1,
        on_lost=lambda: None,
        is_timed=True,
    )
    await queue.open(None)
    began_ns = clock_ns()
    for number in range(1, TIMERS + 1):
        fire_at_ns = began_ns + number * gap_ns
        key = queue.assign(fire_at_ns, number)
        queue.written(key, QueueRow("namespace", "workflow", str(number), RunTimeout(0, fire_at_ns)))
    # Virtual time.
    await asyncio.sleep((TIMERS * gap_ns) / SECOND_NS + 0.1)
    assert done == TIMERS
    await queue.close()
    return reads


@on_virtual_time
async def test_alarms_do_not_accumulate() -> None:
    reads = await _clock_reads(lambda: int(asyncio.get_running_loop().time() * SECOND_NS), SECOND_NS // 10)
    assert reads <= TIMERS * CLOCK_READS_A_TIMER_MAX


def test_a_loop_that_wakes_early_does_not_spin_until_the_timer_is_due() -> None:
    # Not a multiple of a millisecond, which is the resolution of this loop.
    reads = uvloop.run(_clock_reads(time.time_ns, 4_400_000))
    assert reads <= TIMERS * CLOCK_READS_A_TIMER_MAX
