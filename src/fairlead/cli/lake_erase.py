"""`fairlead lake erase`: removes a workflow id or a namespace from the lake, its journal and published tables."""

from pathlib import Path

import click

from fairlead.core.errors import FixRequest
from fairlead.report import Cell, Output, Report, Table, counted, show

# Exit code for a run that is done, but left segments that can't be read.
EXIT_ALARM = 3
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--lake", type=_FOLDER, required=True, metavar="DIR", help="Folder of the lake.")
@click.option("--journal", type=_FOLDER, metavar="DIR", help="Folder of the servers' journals; also erase from it.")
@click.option("--workflow-id", metavar="ID", help="Erase all runs of this workflow id.")
@click.option("--namespace", metavar="NAME", help="Only in this namespace; without --workflow-id, all of it.")
@click.option("--delta", metavar="URL", help="Also erase from the Delta tables in this folder or bucket.")
@click.option("--iceberg", metavar="CATALOG", help="Also erase from the Iceberg tables of this catalog.")
@click.option("--warehouse", metavar="URL", help="Folder or bucket of the Iceberg tables.")
@click.option("--dry-run", is_flag=True, help="Show what would be erased, and change nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Choice([shape.value for shape in Output]),
    default=Output.TABLE.value,
    show_default=True,
    help="Tables for people, or JSON for programs.",
)
def erase(
    *,
    lake: Path,
    journal: Path | None,
    workflow_id: str | None,
    namespace: str | None,
    delta: str | None,
    iceberg: str | None,
    warehouse: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Erase a workflow id or a namespace from the lake; with options, from the journal and published tables, too.

    Delete the workflows on the server first: it journals and exports what it has. Earlier versions of published tables,
    and replaced files that running jobs may still read, are removed. At the end, every file of the lake is searched.

    \b
    fairlead lake erase --lake lake/ --journal journal/ --workflow-id order-1042 --namespace orders
    """
    if (iceberg is None) != (warehouse is None):
        raise FixRequest("--iceberg and --warehouse need each other: give both, or neither")
    # These modules load Arrow and Spark's types.
    from fairlead.pipeline import erasure  # noqa: PLC0415
    from fairlead.pipeline.lake import Lake  # noqa: PLC0415
    from fairlead.pipeline.namespaces import ids_of, known_names  # noqa: PLC0415
    from fairlead.pipeline.publish import DeltaPlace, IcebergPlace, publishing  # noqa: PLC0415

    there = Lake(lake)
    there.check_there()
    ids = None if namespace is None else frozenset(ids_of(namespace, known_names(there)))
    target = erasure.Target(workflow_id, ids)
    rows: list[list[Cell]] = []
    unreadable: tuple[Path, ...] = ()
    still_open = 0
    with there.locked(), publishing(there):
        tables = erasure.erase_from_lake(there, target, is_dry_run=dry_run)
        rows += [[one.table, one.rows, one.blanked, one.files] for one in tables if one.files]
        if journal is not None:
            segments = erasure.erase_from_journal(
                journal,
                target,
                replacing=lambda new: erasure.update_manifests(there, new),
                is_dry_run=dry_run,
            )
            rows.append(["journal", segments.records, segments.blanked, segments.segments])
            unreadable, still_open = segments.unreadable, segments.still_open
        if not dry_run:
            purged: dict[str, int] = {}
            if delta is not None:
                purged |= {
                    f"{name} (Delta)": n for name, n in erasure.erase_from_delta(there, DeltaPlace(delta)).items()
                }
            if iceberg is not None and warehouse is not None:
                done = erasure.erase_from_iceberg(there, IcebergPlace(iceberg, warehouse))
                purged |= {f"{name} (Iceberg)": n for name, n in done.items()}
            rows += [[name, 0, 0, count] for name, count in purged.items() if count]
            erasure.check_erased(there, target)
    removed = sum(row[1] for row in rows if isinstance(row[1], int))
    summary = counted(removed, "row") + (" would be erased" if dry_run else " erased; no file of the lake has it")
    columns = ["where", "rows erased", "rows blanked", "files changed or removed"]
    facts: dict[str, Cell] = {"lake": str(lake), "segments still open": still_open}
    show(
        Report("lake erase", summary, facts, [Table("erased", "", columns, rows)] if rows else []),
        output=Output(output),
        plot=None,
    )
    if still_open:
        click.echo(
            f"fairlead: {counted(still_open, 'segment')} of the journal can still be written to: stop the server, or "
            "run the command again after a minute",
            err=True,
        )
    if unreadable:
        click.echo(
            f"fairlead: {unreadable[0]} can't be read"
            + (f", nor {len(unreadable) - 1} more" if len(unreadable) > 1 else "")
            + ": it may have the erased records; delete it",
            err=True,
        )
    if unreadable or still_open:
        raise click.exceptions.Exit(EXIT_ALARM)
