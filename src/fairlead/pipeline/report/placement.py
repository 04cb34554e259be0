"""The section on placement: the load of each host under each routing, and the moves that a change causes."""

from fairlead.pipeline.queries import Row
from fairlead.pipeline.report.charts import heat
from fairlead.pipeline.report.markup import Markup, shown, table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables

TITLE = "Placement"
HOSTS_SHOWN = 40
SIZES_SHOWN = 8
MOVES_SHOWN = 40
# The load of each host, divided by the mean of all hosts under the same batch size.
LOADS = """
    SELECT *, coalesce(qps / nullif(avg(qps) OVER (PARTITION BY batch_size), 0), 0.0) AS over_mean
    FROM placement_hosts WHERE batch_size IN (SELECT unnest($sizes))
"""
HOTTEST = "SELECT host, max(over_mean) AS over_mean FROM loads GROUP BY host ORDER BY 2 DESC, host LIMIT $count"


def placement(tables: Tables) -> Section:
    """Build the section: a map of hosts and batch sizes, and a table of moves."""
    if not tables.have("placement", "placement_hosts", "placement_moves"):
        return missing("placement", TITLE, job="placement")
    sizes = tables.queries.rows("FROM placement ORDER BY batch_size LIMIT $count", count=SIZES_SHOWN)
    if not sizes:
        return Section("placement", TITLE, (), (tag("p", "There were no partitions to place.", class_="note"),))
    if sizes[0]["hosts"] == 1:
        return Section("placement", TITLE, (), (tag("p", _sentence(sizes), class_="note"),))
    moves = tables.queries.rows("FROM placement_moves ORDER BY batch_size, change LIMIT $count", count=MOVES_SHOWN)
    headings = ("routing", "change", "partitions moved", "of all", "tasks per second moved", "of all")
    body = (
        tag(
            "p",
            f"Load of each host, divided by the mean; the {HOSTS_SHOWN} hosts that are busiest under any "
            f"of the first {SIZES_SHOWN} batch sizes. Darker is hotter.",
            class_="note",
        ),
        tag("div", _map(tables, [row["batch_size"] for row in sizes]), class_="plots"),
        tag("h3", f"Partitions that a change moves, at most {MOVES_SHOWN} changes"),
        table(
            headings,
            (
                (
                    _routing(row["batch_size"]),
                    row["change"],
                    row["partitions"],
                    _share(row["partitions_share"]),
                    row["qps"],
                    _share(row["qps_share"]),
                )
                for row in moves
            ),
        ),
    )
    return Section("placement", TITLE, (Finding(_sentence(sizes)),), body)


def _sentence(sizes: list[Row]) -> str:
    basic = sizes[0]
    if basic["hosts"] == 1:
        return "All partitions are on one host: there is nothing to place."
    best = min(sizes, key=lambda row: (row["qps_over_mean"] or 0.0, row["batch_size"]))
    other = f"; under {_routing(best['batch_size'])} it would be {shown(best['qps_over_mean'])} times"
    return (
        f"Under {_routing(basic['batch_size'])} the busiest of {basic['hosts']:,} hosts has "
        f"{shown(basic['qps_over_mean'])} times the load of the average one{'' if best is basic else other}."
    )


def _map(tables: Tables, sizes: list[int]) -> Markup:
    tables.queries.keep("loads", LOADS, sizes=sizes)
    hottest = tables.queries.keep("hottest", HOTTEST, count=HOSTS_SHOWN)
    hosts = [row["host"] for row in hottest]
    rows = tables.queries.rows(
        "FROM loads SEMI JOIN hottest USING (host) LIMIT $count", count=HOSTS_SHOWN * SIZES_SHOWN
    )
    found = {(row["host"], row["batch_size"]): row for row in rows}
    most = max((row["over_mean"] for row in rows), default=1.0) or 1.0
    cells = []
    for host in hosts:
        line = []
        for size in sizes:
            row = found.get((host, size))
            load, partitions, qps = (row["over_mean"], row["partitions"], row["qps"]) if row else (0.0, 0, 0.0)
            said = f"{shown(host)}, {_routing(size)}: {partitions:,} partitions, {shown(qps)} tasks per second"
            line.append((load / most, f"{load:.2f}", said))
        cells.append(line)
    columns = ["basic" if size == 0 else f"batch {size}" for size in sizes]
    return heat([shown(host) for host in hosts], columns, cells, caption="Load of hosts, divided by the mean")


def _routing(batch_size: int) -> str:
    return "basic routing" if batch_size == 0 else f"spread routing in batches of {batch_size}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
