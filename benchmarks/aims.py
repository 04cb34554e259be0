"""Aims of benchmarks: the measured figure beside the aim, and the aims that were missed by more than noise.

`make bench` names a file in the environment. Each program appends its aims to it, and the summary reads them.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

# Minimum share of an aim that counts as met: a smaller difference may be noise. Rates vary more than ratios of CPU
# times of the same run.
RATE_REACHED_MIN = 0.8
RATIO_REACHED_MIN = 0.9
# Environment variable with the file that collects the aims of several programs, one JSON object a line.
AIMS_FILE = "FAIRLEAD_BENCHMARK_AIMS"


@dataclass(frozen=True)
class Aim:
    """A measured figure and its aim."""

    title: str
    measured: float
    aim: float
    better: Literal["more", "less"] = "more"
    reached_min: float = RATE_REACHED_MIN

    @property
    def share(self) -> float:
        """The share of the aim that was reached; 1 or more if it is met."""
        return self.measured / self.aim if self.better == "more" else self.aim / self.measured

    @property
    def is_missed(self) -> bool:
        """Whether the aim was missed by more than noise."""
        return self.share < self.reached_min

    def __str__(self) -> str:
        bound = "at least" if self.better == "more" else "at most"
        return f"{self.title}: {_shown(self.measured)}, the aim is {bound} {self.aim:,g}"


def show_aims(aims: Sequence[Aim]) -> list[str]:
    """Print a table of the aims; return those that were missed, one line each."""
    if file := os.environ.get(AIMS_FILE):
        with Path(file).open("a") as lines:
            lines.writelines(json.dumps(asdict(aim)) + "\n" for aim in aims)
    Console(width=120).print(table_of(aims))
    return [str(aim) for aim in aims if aim.is_missed]


def collected(file: Path) -> list[Aim]:
    """Return the aims that programs appended to this file."""
    return [Aim(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def table_of(aims: Sequence[Aim]) -> Table:
    """Return a table with one row for each aim."""
    table = Table("", "measured", "aimed at", "times the aim", "")
    for aim in aims:
        bound = f"{'at least' if aim.better == 'more' else 'at most'} {aim.aim:,g}"
        verdict = "MISSED" if aim.is_missed else "met"
        table.add_row(aim.title, _shown(aim.measured), bound, f"{aim.share:.2f}", verdict)
    return table


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
