"""`fairlead admin ring show`: the hosts, the share of each, and whether they agree on the ring."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.admin.cluster import why_silent
from fairlead.cli.admin.ring import ring_report
from fairlead.core.errors import FairleadError
from fairlead.core.routing import GradualChange, HashRing
from fairlead.membership.ring import RING, RingRequest, RingResponse
from fairlead.report import DualCell
from fairlead.rpc.hosts.caller import Unreachable
from fairlead.server import new_caller
from tests.cli.admin.conftest import Admin


async def test_show_lists_the_hosts_and_their_shares(admin: Admin) -> None:
    await admin.fill(tasks=20)
    reported = await admin.ask("ring", "show")
    assert reported["headline"] == "1 host; all agree"
    assert reported["hosts"] == [
        {"host": admin.server.address, "share": 1.0, "partitions_loaded": 4, "hosts_known": 1, "sees": "the same"}
    ]
    assert "partitions loaded" in (await admin.run("ring", "show")).out


def test_hosts_that_disagree_or_do_not_respond_are_reported() -> None:
    hosts = ["a:1", "b:1", "c:1"]
    report = ring_report(
        hosts,
        {
            "a:1": RingResponse("a:1", hosts, 5),
            "b:1": RingResponse("b:1", ["b:1", "c:1", "d:1"], 7, GradualChange(0, 8, 1.0, 2.0)),
            "c:1": Unreachable("it is gone"),
        },
    )
    assert report.summary == "3 hosts; 1 of them does not answer; 1 of them sees another ring"
    assert report.parameters["spread_routing_batch_size"] == DualCell("0 or 0, becoming 8", [0, {"old": 0, "new": 8}])
    assert [row[2:] for row in report.tables[0].rows] == [
        (5, 3, "the same"),
        (7, 3, "not a:1; also d:1"),
        (None, None, "no answer: it is gone"),
    ]


def test_the_hosts_do_not_agree_while_one_does_not_respond() -> None:
    report = ring_report(["a:1", "b:1"], {"a:1": RingResponse("a:1", ["a:1", "b:1"], 5), "b:1": Unreachable("gone")})
    assert report.summary == "2 hosts; 1 of them does not answer; the others agree"
    assert ring_report(["a:1"], {"a:1": Unreachable("gone")}).summary == "1 host; 1 of them does not answer"


async def test_an_unreachable_host_is_reported_briefly() -> None:
    caller = new_caller()
    try:
        with pytest.raises(FairleadError) as raised:
            await caller.call("127.0.0.1:1", RING, RingRequest(), timeout_s=5)
    finally:
        await caller.close()
    assert why_silent(raised.value) == "connection refused"
    assert why_silent(Unreachable("x" * 200)) == "x" * 57 + "..."


@given(st.sets(st.text(min_size=1, max_size=8), max_size=6))
def test_the_shares_of_all_hosts_add_up_to_the_whole_ring(hosts: set[str]) -> None:
    shares = HashRing(hosts).shares()
    assert set(shares) == hosts
    assert sum(shares.values()) == pytest.approx(1.0 if hosts else 0.0)


def test_a_share_is_the_fraction_of_keys_that_a_host_owns() -> None:
    ring = HashRing(["a", "b", "c"])
    owned = [ring.lookup(f"key-{number}") for number in range(20_000)]
    for host, share in ring.shares().items():
        assert owned.count(host) / len(owned) == pytest.approx(share, abs=0.02)
