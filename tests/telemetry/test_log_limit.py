import threading

from fairlead.telemetry.log_limit import EVENT_NAMES_MAX, SAME_EVENTS_MAX, SAME_EVENTS_PERIOD_S, EventLimit


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_event_passes_ten_times_a_second_and_the_next_one_has_the_suppressed_count() -> None:
    clock = Clock()
    limit = EventLimit(clock)
    assert [limit.take("a") for _ in range(SAME_EVENTS_MAX)] == [0] * SAME_EVENTS_MAX
    assert [limit.take("a") for _ in range(3)] == [None] * 3
    clock.now_s += SAME_EVENTS_PERIOD_S
    assert limit.take("a") == 3
    assert limit.take("a") == 0


def test_one_event_does_not_suppress_another() -> None:
    limit = EventLimit(Clock())
    for _ in range(SAME_EVENTS_MAX + 1):
        limit.take("a")
    assert limit.take("b") == 0
    assert limit.take("a") is None


def test_a_clock_that_is_set_back_does_not_silence_the_log() -> None:
    clock = Clock()
    limit = EventLimit(clock)
    for _ in range(SAME_EVENTS_MAX + 1):
        limit.take("a")
    clock.now_s -= 3600
    assert limit.take("a") == 1


def test_the_number_of_event_names_is_bounded_and_the_least_recent_is_evicted() -> None:
    limit = EventLimit(Clock())
    for _ in range(SAME_EVENTS_MAX):
        limit.take("often")
        limit.take("once")
    for number in range(EVENT_NAMES_MAX - 1):
        limit.take(f"made up {number}")
        if number == 0:
            assert limit.take("often") is None
    assert limit.take("often") is None
    assert limit.take("once") == 0


def test_several_threads_can_log_at_once() -> None:
    limit = EventLimit(Clock())
    passed: list[int] = []
    threads = [
        threading.Thread(target=lambda: passed.extend(1 for _ in range(2000) if limit.take("a") is not None))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == SAME_EVENTS_MAX
