"""`fairlead admin ring show`: the hosts, what belongs to each, and whether they agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.admin.ring import ring_report, shares_of
from fairlead.cluster.calls import Unreachable
from fairlead.cluster.ring import RingAnswer
from fairlead.core.routing import GradualChange, HashRing
from tests.cli.admin.conftest import Admin


async def test_show_tells_the_hosts_and_what_they_have(admin: Admin) -> None:
    await admin.fill(tasks=20)
    told = await admin.ask("ring", "show")
    assert told["headline"] == "1 host; all agree"
    assert told["hosts"] == [
        {"host": admin.server.address, "share": 1.0, "partitions_loaded": 4, "hosts_known": 1, "sees": "the same"}
    ]
    assert "partitions loaded" in (await admin.run("ring", "show")).out


def test_hosts_that_disagree_or_are_silent_are_told() -> None:
    hosts = ["a:1", "b:1", "c:1"]
    report = ring_report(
        hosts,
        {
            "a:1": RingAnswer("a:1", hosts, 5),
            "b:1": RingAnswer("b:1", ["b:1", "c:1", "d:1"], 7, GradualChange(0, 8, 1.0, 2.0)),
            "c:1": Unreachable("it is gone"),
        },
    )
    assert report.summary == "3 hosts; 1 of them see another ring; 1 do not answer"
    assert report.parameters["spread routing batch size"] == "0 or 0, becoming 8"
    assert [row[2:] for row in report.tables[0].rows] == [
        (5, 3, "the same"),
        (7, 3, "not a:1; also d:1"),
        (None, None, "no answer: it is gone"),
    ]


@given(st.sets(st.text(min_size=1, max_size=8), max_size=6))
def test_the_shares_of_all_hosts_are_the_whole_ring(hosts: set[str]) -> None:
    shares = shares_of(HashRing(hosts))
    assert set(shares) == hosts
    assert sum(shares.values()) == pytest.approx(1.0 if hosts else 0.0)


def test_a_share_is_how_many_keys_belong_to_a_host() -> None:
    ring = HashRing(["a", "b", "c"])
    owned = [ring.lookup(f"key-{number}") for number in range(20_000)]
    for host, share in shares_of(ring).items():
        assert owned.count(host) / len(owned) == pytest.approx(share, abs=0.02)
