"""Scores of a check against the planted defects: recall and false alarms, a row for each kind of defect."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from fairlead.pipeline.synth.history_defects import Planted

# Result of a check for a run: its verdict, and each wrong finding with its cluster.
Found = tuple[str, frozenset[tuple[str, str | None]]]

OTHERS = "(nothing planted)"


class Score(NamedTuple):
    """How well a check found one kind of defect.

    `found` counts runs with the right verdict and all planted findings; `false_alarms` counts the other findings.
    """

    defect: str
    planted: int
    found: int
    false_alarms: int

    @property
    def recall(self) -> float:
        """Share of the planted runs that the check found completely."""
        return self.found / self.planted if self.planted else 1.0


def score(planted: Iterable[Planted], found: Mapping[str, Found]) -> list[Score]:
    """Score the results of a check by run id; runs that are not in `found` count as agreed."""
    left = dict(found)
    scores: dict[str, Score] = {}
    for entry in planted:
        verdict, findings = left.pop(entry.run_id, ("agreed", frozenset()))
        expected = {tuple(one) for one in entry.expected}
        before = scores.get(entry.defect, Score(entry.defect, 0, 0, 0))
        scores[entry.defect] = Score(
            entry.defect,
            before.planted + 1,
            before.found + (verdict == entry.verdict and expected <= findings),
            before.false_alarms + len(findings - expected),
        )
    false = Score(OTHERS, 0, 0, len(left))
    return [*(scores[name] for name in sorted(scores)), false]


def score_names(planted: Mapping[str, Collection[str]], found: Mapping[str, Collection[str]]) -> list[Score]:
    """Score findings that are names, such as segments in quarantine; both mappings are by defect."""
    return [
        Score(defect, len(names), len({*names} & {*found.get(defect, ())}), len({*found.get(defect, ())} - {*names}))
        for defect, names in sorted({**dict.fromkeys(found, ()), **planted}.items())
    ]


def table_of(scores: Iterable[Score]) -> str:
    """Format the scores as a text table."""
    lines = [f"{'defect':<30}{'planted':>8}{'found':>8}{'recall':>8}{'false alarms':>14}"]
    lines += [
        f"{one.defect:<30}{one.planted:>8,}{one.found:>8,}{one.recall:>8.0%}{one.false_alarms:>14,}" for one in scores
    ]
    return "\n".join(lines)
