import pickle
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead.core.routing.ring as ring_module
from fairlead.core.errors import FixRequest, RetryLater
from fairlead.core.hashing import hash64
from fairlead.core.routing import RING_POINTS_MAX, HashRing, InvalidRing, NoHosts

HOSTS = [f"10.0.0.{number}:7235" for number in range(20)]
KEYS = [f"namespace:queue-{number}:1" for number in range(20_000)]

host_names = st.text(alphabet="abcdef#0123456789", min_size=1, max_size=6)
host_sets = st.lists(host_names, min_size=1, max_size=12, unique=True)
keys = st.text(max_size=20)


def naive_order(hosts: list[str], points_per_host: int, key: str) -> list[str]:
    """All hosts in the order of a clockwise walk from the key."""
    position = hash64(key)
    circle = sorted((hash64(f"{host}#{index}"), host) for host in hosts for index in range(points_per_host))
    clockwise = [host for point, host in circle if point >= position] + [
        host for point, host in circle if point < position
    ]
    return list(dict.fromkeys(clockwise))


def loads(ring: HashRing) -> Counter[str]:
    return Counter(ring.lookup(key) for key in KEYS)


@given(hosts=host_sets, points_per_host=st.integers(1, 5), key=keys, n=st.integers(1, 15))
def test_lookup_n_returns_distinct_hosts_in_clockwise_order(
    hosts: list[str], points_per_host: int, key: str, n: int
) -> None:
    """MC-8. With one to five points per host the walk often passes the end of the circle."""
    ring = HashRing(hosts, points_per_host)
    expected = naive_order(hosts, points_per_host, key)

    assert ring.lookup_n(key, n) == tuple(expected[:n])
    assert ring.lookup(key) == expected[0]


def test_the_walk_wraps_around_the_end_of_the_circle() -> None:
    ring = HashRing(["a", "b", "c"], points_per_host=1)
    beyond_the_last_point = next(key for key in KEYS if hash64(key) > ring.points[-1])

    assert ring.lookup(beyond_the_last_point) == ring.owners[0]
    assert ring.lookup_n(beyond_the_last_point, 3) == ring.owners


def test_a_key_exactly_on_a_point_belongs_to_that_point() -> None:
    ring = HashRing(["a", "b", "c"], points_per_host=1)

    # A point is the hash of this text, so the text as a key falls exactly on the point.
    assert [ring.lookup(f"{host}#0") for host in ("a", "b", "c")] == ["a", "b", "c"]


def test_lookup_n_returns_each_host_once_if_there_are_fewer() -> None:
    hosts = HashRing(["a", "b", "c"]).lookup_n("key", 10)

    assert sorted(hosts) == ["a", "b", "c"]


@given(hosts=host_sets, data=st.data())
def test_the_ring_does_not_depend_on_the_order_or_repetition_of_hosts(hosts: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations([*hosts, hosts[0]]))

    assert HashRing(shuffled, 3) == HashRing(hosts, 3)
    assert HashRing(shuffled, 3).owners == HashRing(hosts, 3).owners


def test_hosts_that_share_a_point_are_ordered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty points on eleven positions: nearly all are shared, which never happens with 64 bits."""
    monkeypatch.setattr(ring_module, "hash64", lambda text: hash64(text) % 11)
    forwards = HashRing(["a", "b", "c"], points_per_host=20)
    backwards = HashRing(["c", "b", "a"], points_per_host=20)

    assert forwards.owners == backwards.owners
    assert all(
        owner <= next_owner
        for (point, owner), (next_point, next_owner) in pairwise(zip(forwards.points, forwards.owners, strict=True))
        if point == next_point
    )


def test_points_are_sorted_and_each_has_its_owner() -> None:
    ring = HashRing(HOSTS)

    assert list(ring.points) == sorted(ring.points)
    assert Counter(ring.owners) == dict.fromkeys(HOSTS, 100)


def test_a_join_moves_only_about_one_share_of_keys_to_the_new_host() -> None:
    before = HashRing(HOSTS)
    after = before.with_host("10.0.0.99:7235")
    moved = [key for key in KEYS if before.lookup(key) != after.lookup(key)]

    assert {after.lookup(key) for key in moved} == {"10.0.0.99:7235"}
    assert 0.5 / 21 < len(moved) / len(KEYS) < 1.5 / 21


def test_a_leave_moves_only_the_keys_of_the_host_that_left() -> None:
    before = HashRing(HOSTS)
    after = before.without_host(HOSTS[7])
    moved = [key for key in KEYS if before.lookup(key) != after.lookup(key)]

    assert moved == [key for key in KEYS if before.lookup(key) == HOSTS[7]]
    assert 0.5 / 20 < len(moved) / len(KEYS) < 1.5 / 20
    # The moved keys are spread over all other hosts, not given to one neighbour.
    assert len({after.lookup(key) for key in moved}) == 19


def test_a_host_that_leaves_and_returns_owns_the_same_keys() -> None:
    ring = HashRing(HOSTS)

    assert ring.without_host(HOSTS[3]).with_host(HOSTS[3]) == ring
    assert ring.with_host(HOSTS[3]) == ring
    assert ring.without_host("a stranger") == ring


def test_every_host_owns_about_its_share() -> None:
    """With 100 points per host, the standard deviation of a share is about a tenth of the mean."""
    load = loads(HashRing(HOSTS))

    assert set(load) == set(HOSTS)
    assert max(load.values()) < 1.4 * len(KEYS) / len(HOSTS)
    assert min(load.values()) > 0.6 * len(KEYS) / len(HOSTS)


def test_more_points_spread_the_load_more_evenly() -> None:
    few, many = loads(HashRing(HOSTS, 2)), loads(HashRing(HOSTS, 1000))

    assert max(many.values()) < 1.15 * len(KEYS) / len(HOSTS)
    assert max(few.values()) > 1.5 * len(KEYS) / len(HOSTS)


def test_a_lookup_in_an_empty_ring_raises_a_retryable_error() -> None:
    empty = HashRing(["a"]).without_host("a")

    with pytest.raises(NoHosts, match="ring is empty") as raised:
        empty.lookup("key")
    assert isinstance(raised.value, RetryLater)
    with pytest.raises(NoHosts, match="'key'"):
        empty.lookup_n("key", 1)


@pytest.mark.parametrize(
    ("hosts", "points_per_host"),
    [(["a", ""], 100), (["a"], 0), (["a"], RING_POINTS_MAX + 1), (["a", "b"], RING_POINTS_MAX // 2 + 1)],
)
def test_an_invalid_ring_is_rejected(hosts: list[str], points_per_host: int) -> None:
    with pytest.raises(InvalidRing) as raised:
        HashRing(hosts, points_per_host)
    assert isinstance(raised.value, FixRequest)


@pytest.mark.parametrize("n", [0, -1])
def test_a_lookup_of_fewer_than_one_host_is_rejected(n: int) -> None:
    with pytest.raises(InvalidRing, match="at least 1"):
        HashRing(["a"]).lookup_n("key", n)


def test_a_ring_can_be_pickled() -> None:
    ring = HashRing(HOSTS)
    received = pickle.loads(pickle.dumps(ring))  # noqa: S301 - our own bytes

    assert received == ring
    assert [received.lookup(key) for key in KEYS[:100]] == [ring.lookup(key) for key in KEYS[:100]]


def test_a_ring_is_immutable() -> None:
    ring = HashRing(["a"])

    with pytest.raises(AttributeError):
        ring.hosts = ("b",)  # type: ignore[misc]


@given(before=host_sets, after=host_sets, points_per_host=st.integers(1, 5))
def test_a_changed_ring_equals_the_ring_that_is_computed_anew(
    before: list[str], after: list[str], points_per_host: int
) -> None:
    others = [f"other-{number}" for number in range(200)]
    changed = HashRing([*others, *before], points_per_host).with_hosts([*others, *after])
    anew = HashRing([*others, *after], points_per_host)
    assert (changed.hosts, changed.points, changed.owners) == (anew.hosts, anew.points, anew.owners)


def test_points_at_the_same_position_are_changed_as_they_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Few positions, so that many hosts share one.
    monkeypatch.setattr(ring_module, "hash64", lambda text: hash64(text) % 7)
    hosts = [f"host-{number:03}" for number in range(100)]
    for changed_to in (hosts[1:], [*hosts, "a"], [*hosts[:50], *hosts[52:], "host-050a"]):
        changed, anew = HashRing(hosts, 3).with_hosts(changed_to), HashRing(changed_to, 3)
        assert (changed.points, changed.owners) == (anew.points, anew.owners)


def test_a_change_of_one_host_hashes_its_points_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = HashRing(f"host-{number}" for number in range(100))
    hashed: list[str] = []

    def note(text: str) -> int:
        hashed.append(text)
        return hash64(text)

    monkeypatch.setattr(ring_module, "hash64", note)
    ring.without_host("host-7").with_host("new")
    assert {text.rpartition("#")[0] for text in hashed} == {"host-7", "new"}


def test_an_empty_name_is_refused_in_a_changed_ring() -> None:
    with pytest.raises(InvalidRing, match="empty name"):
        HashRing(f"host-{number}" for number in range(100)).with_host("")
