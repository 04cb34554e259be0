"""Tables of the job `reconcile`."""

from fairlead.pipeline.dictionary.entry import Column, Table
from fairlead.pipeline.schemas_reconcile import PAIRS, REPAIR_PLAN, VERDICTS

_ITEMS = '[{"event_id": 9, "version": 12}]'
_VERDICT = {
    "verdict": Column("`agreed`, `late`, `not_comparable`, `expired` or `wrong`", '"agreed"'),
    "kinds": Column("kinds of the findings", '["missing_events"]'),
    "branches": Column("version histories of all branches, the current one first", f"[{_ITEMS}]"),
    "drawing": Column("the tree of the branches as text, for people", '"1-5 @2"'),
    "ancestor": Column("last event that all branches share", '{"event_id": 5, "version": 2}'),
    "disagreeing": Column("clusters with another current branch", '["west"]'),
    "status": Column("Temporal's WorkflowExecutionStatus of the current branch", "2"),
    "is_open": Column("whether the run is open", "false"),
    "last_version": Column("version of the last event", "12"),
    "last_event_id": Column("id of the last event of the current branch", "9"),
    "first_us": Column("time of the first batch", "1769860812345678", "µs since the epoch"),
    "last_us": Column("time of the last batch", "1769860912345678", "µs since the epoch"),
    "findings": Column(
        "every difference: kind, state, cluster, the other cluster, version, events, detail",
        '[{"kind": "missing_events", "state": "wrong", "cluster": "west"}]',
    ),
    "clusters": Column("clusters that journaled the run", '["east", "west"]'),
}
_PAIR = {
    "left": Column("a cluster", '"east"'),
    "right": Column("another cluster", '"west"'),
    "runs": Column("runs of either cluster", "1000", "runs"),
    "runs_equal": Column("runs with the same events in both", "998", "runs"),
    "runs_only_left": Column("runs that only the left cluster has", "1", "runs"),
    "runs_only_right": Column("runs that only the right cluster has", "0", "runs"),
    "events_shared": Column("events that both have", "11000", "events"),
    "events_only_left": Column("events that only the left cluster has", "9", "events"),
    "events_only_right": Column("events that only the right cluster has", "0", "events"),
    "events_different": Column("events with different contents", "0", "events"),
    "events_late": Column("missing events that may still be on their way", "3", "events"),
    "events_not_comparable": Column("events without digests in one cluster", "0", "events"),
}
_PLAN = {
    "target": Column("cluster that lacks the events", '"west"'),
    "source": Column("cluster that has them", '"east"'),
    "items": Column("version history of the branch up to the last of the events", _ITEMS),
    "kind": Column("finding that the step repairs", '"missing_events"'),
}

TABLES = (
    Table("verdicts", "reconcile", "a run, with the judgement of all clusters' copies", VERDICTS, _VERDICT),
    Table("pairs", "reconcile", "a pair of clusters in a namespace", PAIRS, _PAIR),
    Table("repair_plan", "reconcile", "a range of events to send from one cluster to another", REPAIR_PLAN, _PLAN),
)
