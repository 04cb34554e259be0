"""What a metric is: declared once, beside what counts it; the exposition and docs/metrics.md follow from that."""

from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from typing import Any

PARTITION_LABELS = ("namespace", "taskqueue", "task_type", "partition")
TASK_LIST_LABELS = PARTITION_LABELS[:-1]
CONFIG_LABELS = (*PARTITION_LABELS, "component")
CALL_LABELS = ("service_name", "operation")
# Stands for every label value for which there was no room.
OTHER = "__other__"


class Kind(StrEnum):
    """What the numbers of a metric do."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric under its name, and under the other names by which the same numbers are known."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    about: str
    aliases: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """Its name, then its aliases."""
        return (self.name, *self.aliases)


# How the values of partitions that share their labels become one.
Fold = Callable[[Iterable[float]], float]


def counter(about: str, *aliases: str) -> int:
    """Declare a field of a dataclass that counts, from 0."""
    return field(default=0, metadata={"about": about, "aliases": aliases})


def gauge(about: str, *aliases: str, fold: Fold) -> float | None:
    """Declare a field of a dataclass that is a value of this moment; None if it is not known."""
    return field(default=None, metadata={"about": about, "aliases": aliases, "fold": fold})


def declared_in(owner: type[Any], kind: Kind, labels: tuple[str, ...]) -> tuple[Metric, ...]:
    """The metrics that a dataclass declares, in the order of its fields."""
    return tuple(
        Metric(one.name, kind, labels, one.metadata["about"], one.metadata["aliases"]) for one in _declaring(owner)
    )


def folds_of(owner: type[Any]) -> tuple[Fold, ...]:
    """How each of its gauges is folded, in the same order."""
    return tuple(one.metadata["fold"] for one in _declaring(owner))


def _declaring(owner: type[Any]) -> list[Field[Any]]:
    return [one for one in fields(owner) if "about" in one.metadata]
