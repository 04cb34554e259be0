"""Declaration of a metric, beside the code that counts; the exposition and docs/metrics.md derive from it."""

from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from typing import Any

PARTITION_LABELS = ("namespace", "taskqueue", "task_type", "partition")
TASK_QUEUE_LABELS = PARTITION_LABELS[:-1]
CONFIG_LABELS = (*PARTITION_LABELS, "component")
CALL_LABELS = ("service_name", "operation")
# Label value of the series that counts everything above a limit on series.
OTHER = "__other__"


class Kind(StrEnum):
    """Types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric; it is exposed under its name and under each alias."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    about: str
    aliases: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """The name, then the aliases."""
        return (self.name, *self.aliases)


# Combines the values of partitions with the same labels into one value.
Fold = Callable[[Iterable[float]], float]


def counter(about: str, *aliases: str) -> int:
    """Declare a dataclass field that is a counter, starting at 0."""
    return field(default=0, metadata={"about": about, "aliases": aliases})


def gauge(about: str, *aliases: str, fold: Fold) -> float | None:
    """Declare a dataclass field that is a gauge; None if the value is unknown."""
    return field(default=None, metadata={"about": about, "aliases": aliases, "fold": fold})


def declared_in(owner: type[Any], kind: Kind, labels: tuple[str, ...]) -> tuple[Metric, ...]:
    """Metrics that a dataclass declares, in the order of its fields."""
    return tuple(
        Metric(one.name, kind, labels, one.metadata["about"], one.metadata["aliases"]) for one in _declaring(owner)
    )


def folds_of(owner: type[Any]) -> tuple[Fold, ...]:
    """Fold of each gauge that a dataclass declares, in the order of its fields."""
    return tuple(one.metadata["fold"] for one in _declaring(owner))


def _declaring(owner: type[Any]) -> list[Field[Any]]:
    return [one for one in fields(owner) if "about" in one.metadata]
