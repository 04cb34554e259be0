"""`fairlead admin dlq list|merge|purge`: replication tasks of other clusters that could not be applied."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from fairlead.api.times import SECOND_NS
from fairlead.cli.admin.cluster import Cluster
from fairlead.cli.admin.command import Command, admin, asks
from fairlead.cli.admin.replication import no_remote_clusters
from fairlead.core.errors import FixRequest
from fairlead.replication.dead_letters import PAGE_MAX, DeadLetter
from fairlead.replication.service import LIST, MERGE, PURGE, DeadLettersRequest, ProcessedDeadLetters
from fairlead.report import Cell, DualCell, Report, Table, counted
from fairlead.rpc.hosts.caller import Method, Response, UnknownMethod

LISTED_MAX = 100
# Dead letters per request: a merge calls the source cluster for each.
MERGED_AT_ONCE = 20
FAILURES_SHOWN_MAX = 50


class DeadLettersNotChosen(FixRequest):
    """The user did not say which dead letters to purge."""


@admin.group(no_args_is_help=True)
def dlq() -> None:
    """Dead letters: replication tasks of other clusters that could not be applied. Other tasks do not wait for them."""


def _chosen(command: Command) -> Command:
    command = click.option(
        "--cluster", "source", default="", metavar="NAME", help="Only dead letters of this cluster."
    )(command)
    return click.option(
        "--task-id", "task_ids", type=int, multiple=True, help="Only this dead letter; may be repeated."
    )(command)


@asks(dlq, "list")
@_chosen
@click.option("--limit", type=click.IntRange(1), default=LISTED_MAX, show_default=True, help="Maximum number to show.")
async def list_dead_letters(cluster: Cluster, *, source: str, task_ids: tuple[int, ...], limit: int) -> Report:
    """List dead letters: the run, the error, and the time."""
    dead_letters: list[DeadLetter] = []
    after = ""
    while True:
        page = await _ask(cluster, LIST, DeadLettersRequest(source, after, PAGE_MAX, task_ids))
        dead_letters += page.dead_letters
        after = page.next_after
        if not after or len(dead_letters) >= limit:
            break
    return dead_letters_report(dead_letters[:limit], is_all=not after and len(dead_letters) <= limit)


def dead_letters_report(dead_letters: Sequence[DeadLetter], *, is_all: bool) -> Report:
    """Return a report on dead letters, the oldest of each stream first."""
    rows: list[tuple[Cell, ...]] = [
        (
            DualCell(str(dead_letter.task_id), dead_letter.task_id),
            dead_letter.source,
            dead_letter.shard_id,
            dead_letter.workflow_id,
            dead_letter.run_id,
            _events(dead_letter),
            dead_letter.items[-1][1] if dead_letter.items else None,
            dead_letter.attempts,
            datetime.fromtimestamp(dead_letter.dead_ns / SECOND_NS, UTC).isoformat(timespec="seconds"),
            dead_letter.error,
        )
        for dead_letter in dead_letters
    ]
    columns = ("task_id", "source", "shard", "workflow_id", "run_id", "events", "version", "attempts", "since", "error")
    more = "" if is_all else ", and more: raise --limit to see them"
    return Report(
        "dead letters",
        f"{counted(len(dead_letters), 'dead letter')}{more}",
        {},
        [Table("dead_letters", "", columns, rows)],
    )


def _events(dead_letter: DeadLetter) -> str:
    if not dead_letter.is_readable:
        return "unknown"
    return (
        f"{dead_letter.first_event_id}-{dead_letter.last_event_id}"
        if dead_letter.first_event_id
        else "activity progress"
    )


@asks(dlq, "merge")
@_chosen
async def merge(cluster: Cluster, *, source: str, task_ids: tuple[int, ...]) -> Report:
    """Fetch dead letters from their clusters again and apply them; those that succeed are removed."""
    return await _go_through(cluster, MERGE, "merged", source, task_ids)


@asks(dlq, "purge")
@_chosen
@click.option("--all", "is_all", is_flag=True, help="All dead letters; instead of --cluster and --task-id.")
async def purge(cluster: Cluster, *, source: str, task_ids: tuple[int, ...], is_all: bool) -> Report:
    """Delete dead letters. Their runs may lack events until the source cluster writes more of them."""
    if not (source or task_ids or is_all):
        raise DeadLettersNotChosen("say which dead letters to purge: --cluster NAME, --task-id ID, or --all")
    return await _go_through(cluster, PURGE, "purged", source, task_ids)


async def _go_through(
    cluster: Cluster,
    method: Method[DeadLettersRequest, ProcessedDeadLetters],
    verb: str,
    source: str,
    task_ids: tuple[int, ...],
) -> Report:
    done = 0
    failures: list[tuple[Cell, ...]] = []
    after = ""
    while True:
        answer = await _ask(cluster, method, DeadLettersRequest(source, after, MERGED_AT_ONCE, task_ids))
        done += answer.done
        failures += [(DualCell(str(task_id), task_id), error) for task_id, error in answer.failures]
        after = answer.next_after
        if not after:
            break
    summary = f"{counted(done, 'dead letter')} {verb}"
    if failures:
        summary += f", {len(failures)} failed"
    note = f"... and {len(failures) - FAILURES_SHOWN_MAX} more" if len(failures) > FAILURES_SHOWN_MAX else ""
    table = Table("failures", "Still dead", ("task_id", "error"), failures[:FAILURES_SHOWN_MAX], note)
    return Report("dead letters", summary, {verb: done, "failed": len(failures)}, [table])


async def _ask(cluster: Cluster, method: Method[DeadLettersRequest, Response], request: DeadLettersRequest) -> Response:
    try:
        return await cluster.ask(method, request)
    except UnknownMethod:
        raise no_remote_clusters() from None
