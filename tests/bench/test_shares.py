import random

import pytest

from fairlead.bench.shares import FairShares


def serve(weights: list[float], tasks: list[int], choose: list[float], dispatches: int) -> FairShares:
    """Dispatch tasks that all wait from the beginning; keys with tasks are served in proportion to `choose`."""
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


def test_a_server_that_follows_the_weights_gives_each_key_its_fair_share() -> None:
    shares = serve([1.0, 2.0, 5.0], [1000] * 3, [1.0, 2.0, 5.0], 800)
    for key, expected in enumerate((100, 200, 500)):
        assert shares.share(key).owed == pytest.approx(expected)
        assert shares.share(key).got == pytest.approx(expected, abs=2)
    assert shares.jain_index() == pytest.approx(1.0, abs=1e-4)
    assert sum(shares.share(key).contended for key in range(3)) == 800


def test_a_server_that_ignores_the_weights_has_a_low_jain_index() -> None:
    shares = serve([1.0, 2.0, 5.0], [1000] * 3, [1.0, 1.0, 1.0], 900)
    assert [shares.share(key).got for key in range(3)] == [300, 300, 300]
    assert [shares.share(key).owed for key in range(3)] == pytest.approx([900 / 8, 900 / 4, 900 * 5 / 8])
    jain = shares.jain_index()
    assert jain is not None
    assert jain < 0.8


def test_the_fair_share_of_a_key_ends_with_its_last_task() -> None:
    """The rest of a flood doesn't count as unfair to small keys without tasks."""
    shares = serve([1.0] * 10, [5000] + [20] * 9, [1.0] * 10, 5180)
    assert shares.share(0).got == 5000
    assert shares.share(0).owed == pytest.approx(5000, abs=2)
    for key in range(1, 10):
        assert shares.share(key).owed == pytest.approx(20, abs=2)
    assert shares.jain_index() == pytest.approx(1.0, abs=1e-3)


def test_the_fair_shares_always_add_up_to_the_dispatched_tasks() -> None:
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
    reported = [shares.share(key) for key in range(8)]
    assert sum(share.got for share in reported) == dispatched
    assert sum(share.owed for share in reported) == pytest.approx(dispatched)


def test_dispatches_without_a_competing_key_are_not_contended() -> None:
    shares = serve([1.0, 1.0], [100, 10], [1.0, 1.0], 110)
    contended = [shares.share(key).contended for key in range(2)]
    assert contended[1] == 10
    assert contended[0] in {9, 10}


def test_a_single_key_has_no_jain_index() -> None:
    assert serve([1.0], [100], [1.0], 100).jain_index() is None


def test_keys_with_a_tiny_fair_share_do_not_affect_the_jain_index() -> None:
    shares = serve([1.0, 1.0, 1.0], [100, 100, 3], [1.0, 1.0, 1000.0], 203)
    # The key was served first, so it got three times its fair share; with three tasks this means nothing.
    assert shares.share(2).got == 3
    assert shares.share(2).owed == pytest.approx(1.0)
    assert shares.jain_index() == pytest.approx(1.0, abs=1e-3)
