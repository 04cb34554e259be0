import random

import pytest

from fairlead.cli.bench.shares import FairShares


def serve(weights: list[float], tasks: list[int], choose: list[float], dispatches: int) -> FairShares:
    """All tasks wait from the beginning; those that still have some are served in proportion to `choose`."""
    shares = FairShares(weights)
    for key, count in enumerate(tasks):
        for _ in range(count):
            shares.waits(key)
    left, served = list(tasks), [0] * len(tasks)
    for _ in range(dispatches):
        key = min((key for key in range(len(tasks)) if left[key]), key=lambda key: (served[key] + 1) / choose[key])
        left[key] -= 1
        served[key] += 1
        shares.dispatched(key)
    return shares


def test_a_server_that_goes_by_weight_gives_each_key_what_it_is_owed() -> None:
    shares = serve([1.0, 2.0, 5.0], [1000] * 3, [1.0, 2.0, 5.0], 800)
    for key, expected in enumerate((100, 200, 500)):
        assert shares.share(key).owed == pytest.approx(expected)
        assert shares.share(key).got == pytest.approx(expected, abs=2)
    assert shares.jain_index() == pytest.approx(1.0, abs=1e-4)
    assert sum(shares.share(key).contended for key in range(3)) == 800


def test_a_server_that_ignores_weights_is_found_out() -> None:
    shares = serve([1.0, 2.0, 5.0], [1000] * 3, [1.0, 1.0, 1.0], 900)
    assert [shares.share(key).got for key in range(3)] == [300, 300, 300]
    assert [shares.share(key).owed for key in range(3)] == pytest.approx([900 / 8, 900 / 4, 900 * 5 / 8])
    jain = shares.jain_index()
    assert jain is not None
    assert jain < 0.8


def test_a_key_that_ran_out_is_owed_nothing_more() -> None:
    """Issue: '1 key with 100,000 tasks and 99 keys with 10': the flood's rest is no unfairness to the small keys."""
    shares = serve([1.0] * 10, [5000] + [20] * 9, [1.0] * 10, 5180)
    assert shares.share(0).got == 5000
    assert shares.share(0).owed == pytest.approx(5000, abs=2)
    for key in range(1, 10):
        assert shares.share(key).owed == pytest.approx(20, abs=2)
    assert shares.jain_index() == pytest.approx(1.0, abs=1e-3)


def test_all_that_is_owed_is_all_that_was_dispatched_whatever_happens() -> None:
    source = random.Random(5)
    shares = FairShares([source.choice([0.5, 1.0, 7.0]) for _ in range(8)])
    waiting = [0] * 8
    dispatched = 0
    for _ in range(5_000):
        key = source.randrange(8)
        if source.random() < 0.5 or not waiting[key]:
            shares.waits(key)
            waiting[key] += 1
        elif source.random() < 0.1:
            shares.withdrawn(key)
            waiting[key] -= 1
        else:
            shares.dispatched(key)
            waiting[key] -= 1
            dispatched += 1
    told = [shares.share(key) for key in range(8)]
    assert sum(share.got for share in told) == dispatched
    assert sum(share.owed for share in told) == pytest.approx(dispatched)


def test_what_is_dispatched_when_a_key_has_run_out_is_not_contended() -> None:
    shares = serve([1.0, 1.0], [100, 10], [1.0, 1.0], 110)
    contended = [shares.share(key).contended for key in range(2)]
    assert contended[1] == 10
    assert contended[0] in {9, 10}


def test_with_one_key_there_is_nothing_to_compare() -> None:
    assert serve([1.0], [100], [1.0], 100).jain_index() is None


def test_keys_that_are_owed_next_to_nothing_do_not_count() -> None:
    shares = serve([1.0, 1.0, 1.0], [100, 100, 3], [1.0, 1.0, 1000.0], 203)
    # Served first of all, it got three times what it was owed: that says nothing of three tasks.
    assert shares.share(2).got == 3
    assert shares.share(2).owed == pytest.approx(1.0)
    assert shares.jain_index() == pytest.approx(1.0, abs=1e-3)
