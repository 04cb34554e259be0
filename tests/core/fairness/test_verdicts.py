"""The due of each fairness key, starved keys and floods."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness.verdicts import KeyFlow, judge

FLOWS = st.dictionaries(
    st.text(max_size=3),
    st.builds(
        lambda weight, waiting, dispatched: KeyFlow(weight, waiting, waiting + dispatched, dispatched),
        st.floats(0.001, 1000),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
    ),
    max_size=8,
)


@given(FLOWS)
def test_the_dues_add_up_to_the_dispatches_and_no_key_is_due_more_than_it_has(flows: dict[str, KeyFlow]) -> None:
    verdicts = judge(flows)
    assert abs(sum(one.due for one in verdicts.values()) - sum(flow.dispatched for flow in flows.values())) < 1e-3
    assert all(one.due <= flows[key].demand + 1e-6 for key, one in verdicts.items())


@given(FLOWS)
def test_no_starved_key_is_a_flood(flows: dict[str, KeyFlow]) -> None:
    assert not any(one.is_starved and one.is_flood for one in judge(flows).values())


def test_dispatches_are_divided_by_weight_while_all_keys_wait() -> None:
    verdicts = judge({"a": KeyFlow(1.0, 500, 600, 100), "b": KeyFlow(3.0, 500, 700, 200)})
    assert (verdicts["a"].due, verdicts["b"].due) == (75.0, 225.0)


def test_a_key_with_little_demand_leaves_the_rest_to_the_others() -> None:
    verdicts = judge({"a": KeyFlow(1.0, 0, 10, 10), "b": KeyFlow(1.0, 500, 590, 90)})
    assert (verdicts["a"].due, verdicts["b"].due) == (10.0, 90.0)


def test_a_flood_with_victims_is_found() -> None:
    flows = {"flood": KeyFlow(1.0, 5_000, 6_000, 1_000)} | {
        f"victim-{number}": KeyFlow(1.0, 200, 200, 0) for number in range(3)
    }
    verdicts = judge(flows)
    assert verdicts["flood"].is_flood
    assert all(one.is_starved for key, one in verdicts.items() if key != "flood")


def test_a_burst_of_all_keys_is_no_flood() -> None:
    verdicts = judge({f"key-{number}": KeyFlow(1.0, 1_000, 1_250, 250) for number in range(4)})
    assert not any(one.is_flood or one.is_starved for one in verdicts.values())
