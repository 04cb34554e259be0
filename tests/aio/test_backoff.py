import pytest

from fairlead.aio.backoff import Backoff, jitter_of


def test_each_wait_doubles_up_to_the_bound() -> None:
    backoff = Backoff(first_s=0.5, max_s=3.0, random=lambda: 1.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_jitter_shortens_a_wait_to_half_at_most() -> None:
    chances = iter([0.0, 0.5, 1.0])
    backoff = Backoff(first_s=1.0, max_s=1.0, random=lambda: next(chances))
    assert [backoff.next_s() for _ in range(3)] == [0.5, 0.75, 1.0]


def test_a_reset_starts_again_with_the_first_wait() -> None:
    backoff = Backoff(first_s=0.5, max_s=3.0, random=lambda: 1.0)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 0.5


def test_the_first_wait_is_bounded_too() -> None:
    assert Backoff(first_s=5.0, max_s=2.0, random=lambda: 1.0).next_s() == pytest.approx(2.0)


def test_the_jitter_of_a_name_lies_between_0_and_1_and_repeats_itself() -> None:
    first, again, other = jitter_of("a"), jitter_of("a"), jitter_of("b")
    draws = [first() for _ in range(1_000)]
    assert min(draws) >= 0.0
    assert max(draws) < 1.0
    assert 0.45 < sum(draws) / len(draws) < 0.55
    assert [again() for _ in range(1_000)] == draws
    assert [other() for _ in range(1_000)] != draws
