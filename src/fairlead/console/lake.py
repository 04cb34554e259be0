"""The lake of `fairlead pipeline` as the console reads it: files and Parquet, without Spark."""

import importlib.util
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.replication.plans import Plan, read_plan
from fairlead.settings import SETTINGS, parse_file
from fairlead.settings.dynamic.rules import RuleSet

# Files that the pipeline writes into a lake.
MARK: Final = "_lake.json"
REPORT_FILE: Final = "report.html"
PLAN_FILE: Final = "repair_plan.json"
RECOMMENDED: Final = "_recommended"

# Bytes of the files that the console reads; `fairlead admin repair` takes larger plans.
REPORT_BYTES_MAX: Final = 64 << 20
PLAN_BYTES_MAX: Final = 16 << 20
RECOMMENDED_BYTES_MAX: Final = 1 << 20
# Rows of the verdicts that are counted, and wrong runs that are listed.
VERDICTS_MAX: Final = 5_000_000
WRONG_MAX: Final = 100
TABLES_MAX: Final = 200

_COLUMNS: Final = ("namespace", "workflow_id", "run_id", "verdict", "kinds")


class UnreadableLake(GiveUp):
    """A file of the lake is damaged or too large."""


class NeedsArrow(FixRequest):
    """PyArrow, which reads the tables, is not installed."""


class WrongRun(Struct, frozen=True):
    """A run whose copies differ between clusters."""

    namespace: str
    workflow_id: str
    run_id: str
    kinds: list[str]


class Findings(Struct, frozen=True):
    """The verdicts of the last reconciliation: runs by verdict, wrong runs by kind, and the first wrong runs."""

    verdicts: dict[str, int]
    kinds: dict[str, int]
    wrong: list[WrongRun]
    is_cut: bool = False


def is_lake(folder: Path) -> bool:
    """Whether a folder is a lake."""
    return (folder / MARK).is_file()


def tables(folder: Path) -> list[tuple[str, float]]:
    """Derived tables with the time of their last run, in seconds since 1970."""
    links = [entry for entry in folder.iterdir() if entry.is_symlink() and entry.is_dir()]
    return [(link.name, link.stat().st_mtime) for link in sorted(links)[:TABLES_MAX]]


def read_report(folder: Path) -> bytes:
    """The page of the last report."""
    return _read(folder / REPORT_FILE, REPORT_BYTES_MAX)


def plan_of(folder: Path) -> Plan | None:
    """The repair plan of the last reconciliation; None if there is none."""
    file = folder / PLAN_FILE
    if not file.is_file():
        return None
    if file.stat().st_size > PLAN_BYTES_MAX:
        raise UnreadableLake(f"{file} has more than {PLAN_BYTES_MAX >> 20} MiB: use fairlead admin repair")
    return read_plan(file)


def recommended(folder: Path, cluster: str) -> tuple[RuleSet, float] | None:
    """The settings that the last backtest recommends for a cluster, and when; None without a backtest."""
    file = folder / RECOMMENDED / f"settings.{cluster}.yaml"
    if not file.is_file():
        return None
    changed_ns = file.stat().st_mtime_ns
    return _rules(file, changed_ns), changed_ns / 1e9


@lru_cache(maxsize=2)
def _rules(file: Path, changed_ns: int) -> RuleSet:  # noqa: ARG001 - a part of the key
    """Read a settings file; cached, since a live view reads the same file every two seconds."""
    parsed = parse_file(_read(file, RECOMMENDED_BYTES_MAX), SETTINGS)
    if parsed.problems:
        raise UnreadableLake(f"{file} can't be used: {parsed.problems[0]}: run fairlead pipeline backtest")
    return RuleSet(parsed.rules)


def findings(folder: Path) -> Findings | None:
    """The verdicts of the last reconciliation; None if there was none. Runs for seconds: call it in a thread."""
    link = folder / "verdicts"
    if not link.is_dir():
        return None
    if importlib.util.find_spec("pyarrow") is None:
        raise NeedsArrow("the tables are Parquet files, and PyArrow is not installed: pip install 'fairlead[pipeline]'")
    # Cache the findings: the files of a run of a table never change.
    return _findings(link.resolve())


@lru_cache(maxsize=2)
def _findings(folder: Path) -> Findings:
    from pyarrow import compute, parquet  # noqa: PLC0415 - only for viewers of this part

    verdicts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    wrong: list[WrongRun] = []
    try:
        for file in sorted(folder.rglob("*.parquet")):
            for batch in parquet.ParquetFile(file).iter_batches(columns=list(_COLUMNS)):
                verdicts.update(_counted(batch.column("verdict")))
                bad = batch.filter(compute.equal(batch.column("verdict"), "wrong"))
                kinds.update(_counted(bad.column("kinds").flatten()))
                wrong += [
                    WrongRun(row["namespace"] or "", row["workflow_id"], row["run_id"], row["kinds"] or [])
                    for row in bad.slice(0, WRONG_MAX - len(wrong)).to_pylist()
                ]
                if verdicts.total() >= VERDICTS_MAX:
                    return Findings(dict(verdicts), dict(kinds), wrong, is_cut=True)
    except (OSError, ValueError, KeyError) as wrong_file:
        raise UnreadableLake(
            f"the table verdicts can't be read: {wrong_file}: run fairlead pipeline reconcile"
        ) from None
    return Findings(dict(sorted(verdicts.items())), dict(sorted(kinds.items())), wrong)


def _counted(column: Any) -> dict[str, int]:
    return {str(each["values"]): int(each["counts"]) for each in column.value_counts().to_pylist()}


def _read(file: Path, bytes_max: int) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(bytes_max + 1)
    except OSError as wrong:
        raise UnreadableLake(f"{file} can't be read: {wrong.strerror or wrong}") from None
    if len(content) > bytes_max:
        raise UnreadableLake(f"{file} has more than {bytes_max >> 20} MiB")
    return content
