"""Two views of a namespace merge to one in any order: configuration and failover each by its own version."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.api.namespaces import Namespace
from fairlead.replication.namespace_merge import FAILOVERS_MAX, DifferentNamespaces, digest_of, merge, replicated

BASE = Namespace(id="id", name="orders", retention_ns=10**15, is_global=True, created_ns=7)
OWNERS = {1: "a", 2: "b", 3: "c"}


@st.composite
def views(draw: st.DrawFn) -> Namespace:
    """A namespace as some cluster may hold it: the content may differ at the same configuration version."""
    version = draw(st.integers(1, 33).filter(lambda number: number % 10 in OWNERS))
    failovers = draw(st.dictionaries(st.integers(1, 40), st.integers(1, 5), max_size=14))
    return replace(
        BASE,
        config_version=draw(st.integers(0, 3)),
        description=draw(st.sampled_from(["", "x", "y"])),
        data=draw(st.dictionaries(st.sampled_from("kl"), st.sampled_from("mn"), max_size=2)),
        clusters=draw(st.sampled_from([("a", "b"), ("b", "a"), ("a", "b", "c")])),
        retention_ns=draw(st.sampled_from([10**15, 2 * 10**15])),
        failover_version=version,
        active_cluster=OWNERS[version % 10],
        failovers=tuple(sorted(failovers.items())[-FAILOVERS_MAX:]),
        failover_origins=tuple((number, "a", at_ns > 2) for number, at_ns in sorted(failovers.items()))[
            -FAILOVERS_MAX:
        ],
    )


@given(st.lists(views(), min_size=1, max_size=4))
def test_every_order_of_arrival_gives_the_same_result(arriving: list[Namespace]) -> None:
    ends = set()
    for order in permutations(arriving):
        present: Namespace | None = None
        for view in order:
            present = merge(present, view)
        assert present is not None
        ends.add(digest_of([present]))
    assert len(ends) == 1


@given(views(), views(), views())
def test_merging_is_associative_commutative_and_idempotent(one: Namespace, two: Namespace, three: Namespace) -> None:
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, one) == one
    assert merge(merge(one, two), two) == merge(one, two)


def test_configuration_and_failover_are_merged_independently() -> None:
    here = replace(BASE, config_version=5, description="newer", failover_version=1, active_cluster="a")
    there = replace(BASE, config_version=4, description="older", failover_version=12, active_cluster="b")
    merged = merge(here, there)
    assert (merged.description, merged.config_version) == ("newer", 5)
    assert (merged.active_cluster, merged.failover_version) == ("b", 12)


def test_different_contents_at_the_same_version_converge() -> None:
    here = replace(BASE, config_version=1, description="here")
    there = replace(BASE, config_version=1, description="there")
    assert merge(here, there) == merge(there, here)
    assert merge(here, there).description in ("here", "there")


def test_fields_local_to_one_cluster_are_not_replicated() -> None:
    here = replace(BASE, version=9, handover_until_ns=5, handover_to="b", failover_version=1)
    assert replicated(here) == replace(BASE, failover_version=1)
    arriving = replace(BASE, version=70, handover_until_ns=8, handover_to="c", failover_version=1)
    assert merge(here, arriving) == here
    assert merge(None, arriving) == replace(BASE, failover_version=1)


def test_a_failover_ends_a_handover() -> None:
    here = replace(BASE, handover_until_ns=5, handover_to="b", failover_version=1)
    moved = merge(here, replace(BASE, failover_version=2, active_cluster="b"))
    assert (moved.handover_until_ns, moved.handover_to) == (0, "")


def test_two_namespaces_with_the_same_name_are_not_merged() -> None:
    with pytest.raises(DifferentNamespaces, match="has id id here"):
        merge(BASE, replace(BASE, id="other"))


def test_only_the_latest_failovers_are_kept() -> None:
    here = replace(BASE, failovers=tuple((number, 1) for number in range(1, 11)))
    there = replace(BASE, failovers=((10, 9), (11, 4)))
    assert merge(here, there).failovers == (*((number, 1) for number in range(2, 11)), (11, 4))
    here = replace(BASE, failover_origins=tuple((number, "a", True) for number in range(1, 11)))
    there = replace(BASE, failover_origins=((10, "a", False), (11, "b", False)))
    kept = tuple((number, "a", True) for number in range(2, 10))
    assert merge(here, there).failover_origins == (*kept, (10, "a", False), (11, "b", False))
