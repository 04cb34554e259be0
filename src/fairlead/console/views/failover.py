"""The failover of a global namespace: a preflight of each target, the failover itself, and past ones."""

from typing import Final

import msgspec

from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Cell, Grid, Grids, button, moment, number, text
from fairlead.console.problems import problem_of
from fairlead.console.text import plural
from fairlead.console.view import Action, Field, FieldKind, Form, Parameters, View
from fairlead.core.errors import FairleadError
from fairlead.http import HttpFault
from fairlead.journal import AuditRecord
from fairlead.replication.failover import FAIL_OVER
from fairlead.replication.messages import FailOverRequest
from fairlead.replication.preflight import (
    ANSWERS_S_MAX,
    FAILOVERS,
    PREFLIGHT,
    FailoversRequest,
    PastFailover,
    Preflight,
    PreflightRequest,
    Target,
)
from fairlead.rpc.hosts.caller import UnknownMethod

# Seconds for a failover; a graceful one that takes longer changes nothing.
FAILOVER_S_MAX: Final = 30.0
PREFLIGHT_S_MAX: Final = 2 * ANSWERS_S_MAX + 4.0
FAILOVERS_SHOWN: Final = 20
# Seconds by which the clock of another cluster may differ from this host's.
CLOCKS_S_MAX: Final = 5.0
# Methods that can fail a namespace over.
_METHODS: Final = ("/replication.FailOver", "/UpdateNamespace")


class Asked(Parameters, frozen=True, kw_only=True):
    """`name` is the global namespace; without it, past failovers of all of them are shown."""

    name: str = ""


async def load(context: Context, asked: Asked) -> Grids:
    """Ask the clusters of the namespace, without changing anything."""
    await context.require(HOST_METHODS["replication.Preflight"])
    if not asked.name:
        raise HttpFault(400, "the address names no namespace: add name=...")
    host = min(context.backend.ring.hosts)
    try:
        found = await context.ask_host(host, PREFLIGHT, PreflightRequest(asked.name), timeout_s=PREFLIGHT_S_MAX)
    except UnknownMethod:
        raise HttpFault(400, "this cluster is alone: there is no `cluster` in its configuration") from None
    sentence = f"{asked.name} is active in {found.active_cluster}, at version {found.failover_version}."
    if found.is_handing_over:
        sentence += " It is being handed over: its writes wait."
    targets = Grid(
        id="preflight",
        title="Preflight: where it could go",
        columns=["Target", "Connection", "Lag", "Dead letters", "Advice", ""],
        rows=[_row(found, target) for target in found.targets],
        empty="The namespace is in no other cluster.",
        hint="Add one with: temporal operator namespace update --cluster",
        note="Lag and dead letters are those of this namespace, as of the time at which this page was loaded.",
    )
    return Grids(
        grids=[targets, await past_failovers(context, asked.name)],
        heading=f"Failover of {asked.name}",
        sentence=sentence,
    )


def _row(found: Preflight, target: Target) -> list[Cell]:
    if target.error:
        connection, lag, dead = text("no response", "bad"), text("unknown"), text("unknown")
        advice = text(f"Only by force, in the console of the target: {target.error}")
    else:
        connection = text("responds", "good")
        lag = _lag(found, target)
        dead = text(str(target.dead_letters), "bad") if target.dead_letters else number(0)
        advice = _advice(found, target)
    return [
        text(target.cluster),
        connection,
        lag,
        dead,
        advice,
        button("start", f"Fail over to {target.cluster}", to=target.cluster),
    ]


def _lag(found: Preflight, target: Target) -> Cell:
    if not target.shards:
        return text(f"known in the console of {found.active_cluster}", "quiet")
    if not target.behind:
        return text("has every write", "good")
    return text(f"lacks writes of {target.behind} of {plural(target.shards, 'shard')}", "warn")


def _advice(found: Preflight, target: Target) -> Cell:
    if target.dead_letters:
        return text("A graceful failover is refused: merge or purge the dead letters there first.")
    if target.behind:
        return text("A graceful failover waits for the rest; after a forced one the rest is on lost branches.")
    if not target.shards:
        return text(f"{found.active_cluster} carries out a graceful failover, and waits for the rest.")
    return text("ready", "good")


async def past_failovers(context: Context, namespace: str = "") -> Grid:
    """The latest failovers of a namespace, or of all, the newest first."""
    grid = Grid(
        id="failovers",
        title="Failovers",
        columns=["When", "Namespace", "From", "To", "How", "Version", "By", "Reason"],
        rows=[],
        empty="No namespace was failed over yet.",
        note="By and reason come from the audit of this host, where there is one.",
    )
    try:
        found = await context.ask_host(context.backend.host, FAILOVERS, FailoversRequest(namespace))
    except FairleadError as failure:
        return msgspec.structs.replace(grid, problem=problem_of(failure))
    audit = context.backend.audit
    may_read = audit is not None and await context.may(HOST_METHODS["authorization.ListKeys"])
    records = list(audit.recent) if audit is not None and may_read else []
    for one in found.failovers[:FAILOVERS_SHOWN]:
        record = _record_of(one, records)
        how = "not recorded" if one.is_graceful is None else "graceful" if one.is_graceful else "forced"
        is_new = one.came_from == one.to
        grid.rows.append(
            [
                moment(one.at_ns / 1e9),
                text(one.namespace),
                text("" if is_new else one.came_from or "not recorded"),
                text(one.to),
                text("became global" if is_new else how, "warn" if how == "forced" and not is_new else ""),
                number(one.failover_version),
                text("" if record is None else record.principal),
                text("" if record is None else record.reason),
            ]
        )
    return grid


def _record_of(one: PastFailover, records: list[AuditRecord]) -> AuditRecord | None:
    """The last request before a failover that can have caused it."""
    at_s = one.at_ns / 1e9
    for record in reversed(records):
        passed_s = at_s - record.time_us / 1e6
        is_it = record.is_allowed and record.method.endswith(_METHODS)
        if is_it and one.namespace in {record.namespace, record.object} and -CLOCKS_S_MAX < passed_s < FAILOVER_S_MAX:
            return record
    return None


async def _start(context: Context, asked: Asked, form: Form) -> str:
    is_graceful = form.get("how", "graceful") == "graceful"
    request = FailOverRequest(asked.name, form["to"], is_graceful, FAILOVER_S_MAX)
    host = min(context.backend.ring.hosts)
    done = await context.ask_host(host, FAIL_OVER, request, timeout_s=FAILOVER_S_MAX + 5.0)
    return f"{request.namespace} is active in {done.active_cluster}, at version {done.failover_version}."


VIEW: Final = View(
    path="failover",
    title="Failover",
    parameters=Asked,
    load=load,
    template=TEMPLATE,
    # Each load asks every shard and the other clusters.
    is_live=False,
    actions=(
        Action(
            name="start",
            label="Fail over",
            access=HOST_METHODS["replication.FailOver"],
            act=_start,
            word="fail over",
            fields=(
                Field(name="to", label="To cluster", is_required=True),
                Field(
                    name="how",
                    label="How",
                    kind=FieldKind.CHOICE,
                    choices=(
                        ("graceful", "graceful: wait for all events"),
                        ("forced", "forced: at once, even if one is down"),
                    ),
                ),
            ),
            about="A graceful failover that is not complete in 30 seconds changes nothing.",
        ),
    ),
)
