from fairlead.core.rates import PriorityRate


def passed(limit: PriorityRate, priority: int, *, calls: int, now_s: float) -> int:
    return sum(limit.try_take(priority, now_s) for _ in range(calls))


def test_a_burst_passes_and_then_the_steady_rate() -> None:
    limit = PriorityRate(8, burst_s=2, priorities=1)
    assert passed(limit, 0, calls=50, now_s=0.0) == 16
    assert passed(limit, 0, calls=50, now_s=1.0) == 8
    assert passed(limit, 0, calls=50, now_s=100.0) == 16


def test_important_calls_displace_others_and_are_never_displaced() -> None:
    limit = PriorityRate(8, burst_s=1, priorities=3)
    assert passed(limit, 2, calls=50, now_s=0.0) == 8
    assert passed(limit, 0, calls=5, now_s=0.0) == 5
    assert passed(limit, 1, calls=50, now_s=0.0) == 3
    assert passed(limit, 0, calls=50, now_s=0.0) == 3


def test_others_get_their_share_again_when_important_calls_cease() -> None:
    limit = PriorityRate(8, burst_s=1, priorities=2)
    for second in range(100):
        assert passed(limit, 0, calls=8, now_s=float(second)) == 8
        assert passed(limit, 1, calls=10, now_s=float(second)) == 0
    assert passed(limit, 1, calls=50, now_s=101.0) == 8


def test_a_call_that_is_not_let_through_counts_against_nothing() -> None:
    limit = PriorityRate(8, burst_s=1, priorities=2)
    assert passed(limit, 0, calls=1000, now_s=0.0) == 8
    assert passed(limit, 0, calls=50, now_s=1.0) == 8


def test_a_changed_rate_takes_effect_at_once() -> None:
    limit = PriorityRate(8, burst_s=1, priorities=1)
    assert passed(limit, 0, calls=50, now_s=0.0) == 8
    limit.change(1024, burst_s=1)
    assert passed(limit, 0, calls=5000, now_s=1.0) == 1024


def test_an_operator_can_act_while_all_limits_are_reached() -> None:
    limit = PriorityRate(8, burst_s=1, priorities=2, operators_share=0.25)
    for second in range(10):
        assert passed(limit, 0, calls=50, now_s=float(second)) == 8
        assert sum(limit.try_take(1, float(second), is_operator=True) for _ in range(50)) == 2
    limit.change(8, burst_s=1, operators_share=0.5)
    assert passed(limit, 0, calls=50, now_s=20.0) == 8
    assert sum(limit.try_take(1, 20.0, is_operator=True) for _ in range(50)) == 4


def test_calls_of_operators_count_and_may_also_use_the_limit_of_their_priority() -> None:
    limit = PriorityRate(8, burst_s=1, priorities=2, operators_share=0.25)
    assert sum(limit.try_take(0, 0.0, is_operator=True) for _ in range(50)) == 8
    assert passed(limit, 0, calls=50, now_s=0.0) == 0


def test_without_a_share_an_operator_is_a_caller_like_others() -> None:
    limit = PriorityRate(8, burst_s=1, priorities=1)
    assert passed(limit, 0, calls=50, now_s=0.0) == 8
    assert not limit.try_take(0, 0.0, is_operator=True)
