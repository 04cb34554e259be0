"""`fairlead admin ring show`: the hosts, their shares of the ring, and whether they agree on it."""

from collections.abc import Collection, Mapping, Sequence

from fairlead.cli.admin.cluster import Cluster, why_silent
from fairlead.cli.admin.command import admin, asks
from fairlead.core.errors import FairleadError
from fairlead.core.routing import GradualChange, HashRing
from fairlead.membership.ring import RingResponse
from fairlead.report import Cell, DualCell, Report, Table, counted


@admin.group(no_args_is_help=True)
def ring() -> None:
    """Show the ring: the hosts, and the share of each."""


@asks(ring, "show")
async def show_ring(cluster: Cluster) -> Report:
    """Show the hosts, their share of the ring, the partitions that each has loaded, and whether they agree.

    After a host has joined or left, the others may disagree for one or two heartbeats. If they disagree for longer, a
    host can't reach the store.
    """
    return ring_report(cluster.ring.hosts, await cluster.hosts())


def ring_report(reported: Collection[str], answers: Mapping[str, RingResponse | FairleadError]) -> Report:
    """Compare the ring of one host (`reported`) with the ring that each host reports."""
    shares = HashRing(reported).shares()
    sizes: list[int | GradualChange[int]] = []
    rows: list[tuple[Cell, ...]] = []
    silent = differing = 0
    for host, answer in answers.items():
        if isinstance(answer, FairleadError):
            silent += 1
            rows.append((host, shares[host], None, None, f"no answer: {why_silent(answer)}"))
        else:
            if answer.spread_batch_size not in sizes:
                sizes.append(answer.spread_batch_size)
            difference = _difference(reported, answer.hosts)
            differing += bool(difference)
            rows.append((host, shares[host], answer.loaded, len(answer.hosts), difference or "the same"))
    table = Table("hosts", "", ("host", "share", "partitions_loaded", "hosts_known", "sees"), rows)
    summary = _summary(len(reported), silent=silent, differing=differing)
    return Report("ring", summary, {"spread_routing_batch_size": _batch_sizes(sizes)}, [table])


def _summary(hosts: int, *, silent: int, differing: int) -> str:
    said = [counted(hosts, "host")]
    if silent:
        said.append(f"{silent} of them {'does' if silent == 1 else 'do'} not answer")
    if differing:
        said.append(f"{differing} of them {'sees' if differing == 1 else 'see'} another ring")
    elif silent < hosts:
        said.append("the others agree" if silent else "all agree")
    return "; ".join(said)


def _difference(reported: Collection[str], seen: Collection[str]) -> str:
    missing, more = sorted(set(reported) - set(seen)), sorted(set(seen) - set(reported))
    said = [f"not {', '.join(missing)}"] if missing else []
    said += [f"also {', '.join(more)}"] if more else []
    return "; ".join(said)


def _batch_sizes(sizes: Sequence[int | GradualChange[int]]) -> Cell:
    """Return the batch size that the hosts report: one value if they agree, else all values."""
    texts = sorted(
        f"{size.old}, becoming {size.new}" if isinstance(size, GradualChange) else str(size) for size in sizes
    )
    plain = [{"old": size.old, "new": size.new} if isinstance(size, GradualChange) else size for size in sizes]
    if not plain:
        return None
    return DualCell(" or ".join(texts), plain[0] if len(plain) == 1 else plain)
