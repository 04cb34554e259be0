"""`fairlead admin dlq list|merge|purge`: what came from other clusters and could not be taken in."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from fairlead.cli.admin.cluster import Cluster
from fairlead.cli.admin.command import Command, admin, asks
from fairlead.cli.admin.replication import shares_nothing
from fairlead.cli.report import Cell, Report, Table, Told, counted
from fairlead.cluster.calls import Answer, Method, UnknownMethod
from fairlead.core.errors import FixRequest
from fairlead.replication.dead_letters import PAGE_MAX, DeadLetter
from fairlead.replication.service import LIST, MERGE, PURGE, DoneWithLetters, LettersRequest

LISTED_MAX = 100
# Letters of one request: each takes a call to its source, and more.
MERGED_AT_ONCE = 20
FAILURES_SHOWN_MAX = 50
SECOND_NS = 1_000_000_000


class WhichLetters(FixRequest):
    """It was not said which letters are to go."""


@admin.group(no_args_is_help=True)
def dlq() -> None:
    """Dead letters: tasks of other clusters that could not be taken in. Nothing else waits for them."""


def _chosen(command: Command) -> Command:
    command = click.option("--cluster", "source", default="", metavar="NAME", help="Only those of this cluster.")(
        command
    )
    return click.option("--task-id", "task_ids", type=int, multiple=True, help="Only these; may be repeated.")(command)


@asks(dlq, "list")
@_chosen
@click.option("--limit", type=click.IntRange(1), default=LISTED_MAX, show_default=True, help="The most to show.")
async def list_letters(cluster: Cluster, *, source: str, task_ids: tuple[int, ...], limit: int) -> Report:
    """List dead letters: of which run they are, why they are dead, and since when."""
    letters: list[DeadLetter] = []
    after = ""
    while True:
        page = await _ask(cluster, LIST, LettersRequest(source, after, PAGE_MAX, task_ids))
        letters += page.letters
        after = page.next_after
        if not after or len(letters) >= limit:
            break
    return letters_report(letters[:limit], is_all=not after and len(letters) <= limit)


def letters_report(letters: Sequence[DeadLetter], *, is_all: bool) -> Report:
    """The letters, the oldest of each stream first."""
    rows: list[tuple[Cell, ...]] = [
        (
            Told(str(letter.task_id), letter.task_id),
            letter.source,
            letter.shard_id,
            letter.workflow_id,
            letter.run_id,
            _events(letter),
            letter.items[-1][1] if letter.items else None,
            letter.attempts,
            datetime.fromtimestamp(letter.dead_ns / SECOND_NS, UTC).isoformat(timespec="seconds"),
            letter.error,
        )
        for letter in letters
    ]
    columns = ("task_id", "source", "shard", "workflow_id", "run_id", "events", "version", "attempts", "since", "error")
    more = "" if is_all else ", and more: --limit shows them"
    return Report(
        "dead letters", f"{counted(len(letters), 'dead letter')}{more}", {}, [Table("letters", "", columns, rows)]
    )


def _events(letter: DeadLetter) -> str:
    if not letter.is_readable:
        return "unknown"
    return f"{letter.first_event_id}-{letter.last_event_id}" if letter.first_event_id else "activity progress"


@asks(dlq, "merge")
@_chosen
async def merge(cluster: Cluster, *, source: str, task_ids: tuple[int, ...]) -> Report:
    """Get dead letters from their clusters again, and take them in; those for which that ends well are gone."""
    return await _go_through(cluster, MERGE, "merged", source, task_ids)


@asks(dlq, "purge")
@_chosen
@click.option("--all", "is_all", is_flag=True, help="All of them, where neither --cluster nor --task-id is given.")
async def purge(cluster: Cluster, *, source: str, task_ids: tuple[int, ...], is_all: bool) -> Report:
    """Let dead letters go. The runs that they were of may miss events until their cluster writes more of them."""
    if not (source or task_ids or is_all):
        raise WhichLetters("say which letters are to go: --cluster NAME, --task-id ID, or --all")
    return await _go_through(cluster, PURGE, "purged", source, task_ids)


async def _go_through(
    cluster: Cluster,
    method: Method[LettersRequest, DoneWithLetters],
    verb: str,
    source: str,
    task_ids: tuple[int, ...],
) -> Report:
    done = 0
    failures: list[tuple[Cell, ...]] = []
    after = ""
    while True:
        answer = await _ask(cluster, method, LettersRequest(source, after, MERGED_AT_ONCE, task_ids))
        done += answer.done
        failures += [(Told(str(task_id), task_id), error) for task_id, error in answer.failures]
        after = answer.next_after
        if not after:
            break
    summary = f"{counted(done, 'dead letter')} {verb}"
    if failures:
        summary += f", {len(failures)} could not be"
    note = f"... and {len(failures) - FAILURES_SHOWN_MAX} more" if len(failures) > FAILURES_SHOWN_MAX else ""
    table = Table("failures", "Still dead", ("task_id", "error"), failures[:FAILURES_SHOWN_MAX], note)
    return Report("dead letters", summary, {verb: done, "failed": len(failures)}, [table])


async def _ask(cluster: Cluster, method: Method[LettersRequest, Answer], request: LettersRequest) -> Answer:
    try:
        return await cluster.ask(method, request)
    except UnknownMethod:
        raise shares_nothing() from None
