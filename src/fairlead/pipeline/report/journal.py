"""The section on the journal: the segments that could not be read."""

from fairlead.pipeline.report.levels import Level
from fairlead.pipeline.report.markup import table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables

TITLE = "Journal"
SEGMENTS_SHOWN = 20


def journal(tables: Tables) -> Section:
    """Build the section: the ingested records, and the segments in quarantine."""
    lake = tables.lake
    if not lake.has("task") and not lake.has("history"):
        return missing("journal", TITLE, job="ingest")
    rows = {kind: sum(entry.rows for entry in lake.segments(kind)) for kind in ("task", "history")}
    read = Finding(f"Ingested so far: {rows['task']:,} records of tasks and {rows['history']:,} batches of events.")
    unresolved = lake.unresolved()
    quarantined = len(unresolved)
    if not quarantined:
        return Section("journal", TITLE, (read,), (tag("p", "No segment waits in quarantine.", class_="note"),))
    verb = "segment can't be read and is" if quarantined == 1 else "segments can't be read and are"
    alarm = Finding(
        f"{quarantined:,} {verb} in quarantine: replace them by good copies, or dismiss them with `ingest --dismiss`.",
        level=Level.RED,
    )
    shown = [
        (found.entry.cluster, found.entry.name, found.reason, found.entry.rows) for found in unresolved[:SEGMENTS_SHOWN]
    ]
    headings = ("cluster", "segment", "why", "records before the damage")
    body = (tag("h3", f"In quarantine, the first {SEGMENTS_SHOWN} by name"), table(headings, shown))
    return Section("journal", TITLE, (alarm, read), body)
