"""Calls to a server are paced by a token bucket."""

from fairlead.pipeline.public_export.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s


async def times(clock: Clock, pace: Pace, calls: int) -> list[float]:
    made = []
    for _ in range(calls):
        await pace.wait()
        made.append(round(clock.now_s - 100, 3))
    return made


async def test_after_one_seconds_worth_the_calls_are_spread_evenly() -> None:
    clock = Clock()
    pace = Pace(4.0, clock=clock, sleep=clock.sleep)
    assert await times(clock, pace, 7) == [0, 0, 0, 0, 0.25, 0.5, 0.75]


async def test_a_pause_is_not_saved_up_beyond_one_second() -> None:
    clock = Clock()
    pace = Pace(2.0, clock=clock, sleep=clock.sleep)
    clock.now_s = 160.0
    assert await times(clock, pace, 4) == [60, 60, 60.5, 61]


async def test_below_one_call_a_second_the_first_call_does_not_wait() -> None:
    clock = Clock()
    pace = Pace(0.1, clock=clock, sleep=clock.sleep)
    assert await times(clock, pace, 3) == [0, 10, 20]
