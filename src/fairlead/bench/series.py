"""The run over time, as tables."""

from fairlead.bench.tally import Tally
from fairlead.bench.waits import milliseconds
from fairlead.report import Table


def timeline_table(tally: Tally) -> Table:
    """Return rates and waits of each time bin."""
    bin_s = tally.timeline.bin_s
    rows = [
        (
            round(index * bin_s, 3),
            round(one.adds / bin_s, 1),
            round(one.receives / bin_s, 1),
            milliseconds(one.waits.at_s(50)),
            milliseconds(one.waits.at_s(99)),
        )
        for index, one in enumerate(tally.timeline.bins)
    ]
    return Table("timeline", "Over time", ("at_s", "adds_per_s", "dispatches_per_s", "p50_ms", "p99_ms"), rows)


def configs_table(tally: Tally) -> Table:
    """Return the partition configurations seen in responses."""
    rows = [
        (round(tally.since_start_s(seen.at_s), 3), seen.config.version, seen.config.read, seen.config.write)
        for seen in tally.configs
    ]
    return Table("configs", "Partition configurations", ("at_s", "version", "read", "write"), rows)
