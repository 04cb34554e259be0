"""The kinds of values that settings have: how each is read, checked against its bounds, and written."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeAlias, TypeVar

from fairlead.core.errors import FixRequest
from fairlead.core.fairness import WeightOverrides
from fairlead.core.routing import GradualChange
from fairlead.settings.duration import format_duration, parse_duration_s
from fairlead.settings.problem import InvalidValue

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

# What a value is in JSON, and what a file holds once it was read: nothing of Python's own.
Plain: TypeAlias = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None


class Kind(Protocol[T]):
    """Reads one kind of value. `name` and `bounds` are for people."""

    @property
    def name(self) -> str:
        """What the kind is called in the reference."""
        ...

    @property
    def bounds(self) -> str:
        """What values are allowed, in words; empty if any of the type."""
        ...

    def parse(self, raw: Plain) -> T:
        """The value that a file or a command line means; raise `InvalidValue` if it is none of the kind."""
        ...

    def plain(self, value: T) -> Plain:
        """The value as a file would write it: `parse` reads it back."""
        ...


@dataclass(frozen=True, slots=True)
class Bool:
    """True or false."""

    name: str = "bool"
    bounds: str = ""

    def parse(self, raw: Plain) -> bool:
        """Only true and false: 0, 1 and texts are mistakes more often than not."""
        if not isinstance(raw, bool):
            raise InvalidValue("is no bool: write true or false")
        return raw

    def plain(self, value: bool) -> Plain:  # noqa: FBT001 - the value is the subject here
        """The value itself."""
        return value


@dataclass(frozen=True, slots=True)
class Int:
    """A whole number between two bounds, both included."""

    minimum: int
    maximum: int
    name: str = "int"

    @property
    def bounds(self) -> str:
        """The two bounds."""
        return f"{self.minimum} to {self.maximum}"

    def parse(self, raw: Plain) -> int:
        """Only what is written as a whole number."""
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise InvalidValue(f"is no whole number: write one from {self.bounds}, without quotes")
        if not self.minimum <= raw <= self.maximum:
            raise InvalidValue(f"is out of bounds: choose {self.bounds}")
        return raw

    def plain(self, value: int) -> Plain:
        """The value itself."""
        return value


@dataclass(frozen=True, slots=True)
class Float:
    """A number between two bounds, both included."""

    minimum: float
    maximum: float
    name: str = "float"

    @property
    def bounds(self) -> str:
        """The two bounds."""
        return f"{self.minimum:g} to {self.maximum:g}"

    def parse(self, raw: Plain) -> float:
        """Any number; NaN is within no bounds."""
        if not isinstance(raw, int | float) or isinstance(raw, bool):
            raise InvalidValue(f"is no number: write one from {self.bounds}, without quotes")
        # Compared before it is converted: a whole number may be too large for a float.
        if not self.minimum <= raw <= self.maximum:
            raise InvalidValue(f"is out of bounds: choose {self.bounds}")
        return float(raw)

    def plain(self, value: float) -> Plain:
        """The value itself, without a point where it needs none."""
        return int(value) if value.is_integer() else value


@dataclass(frozen=True, slots=True)
class Duration:
    """A time between two bounds, both included; its value is in seconds."""

    minimum_s: float
    maximum_s: float
    name: str = "duration"

    @property
    def bounds(self) -> str:
        """The two bounds."""
        return f"{format_duration(self.minimum_s)} to {format_duration(self.maximum_s)}"

    def parse(self, raw: Plain) -> float:
        """A text like "1m30s", or a number of seconds."""
        seconds = parse_duration_s(raw)
        if not self.minimum_s <= seconds <= self.maximum_s:
            raise InvalidValue(f"is out of bounds: choose {self.bounds}")
        return seconds

    def plain(self, value: float) -> Plain:
        """The text."""
        return format_duration(value)


@dataclass(frozen=True, slots=True)
class Choice(Generic[E]):
    """One of a few names."""

    names: type[E]
    name: str = "choice"

    @property
    def bounds(self) -> str:
        """The names."""
        return ", ".join(self.names)

    def parse(self, raw: Plain) -> E:
        """The name, in any case of its letters."""
        for member in self.names:
            if isinstance(raw, str) and raw.lower() == member.value:
                return member
        raise InvalidValue(f"is none of the choices: {self.bounds}")

    def plain(self, value: E) -> Plain:
        """The name."""
        return value.value


@dataclass(frozen=True, slots=True)
class GradualInt:
    """A whole number, or a gradual change from one to another between two moments."""

    minimum: int
    maximum: int
    name: str = "gradual int"

    @property
    def bounds(self) -> str:
        """The bounds of the number, before and after."""
        return f"{self.minimum} to {self.maximum}, or {{old, new, start, end}}"

    def parse(self, raw: Plain) -> int | GradualChange[int]:
        """A number, or `{old: 0, new: 8, start: 2026-11-15T20:00:00Z, end: 2026-11-15T21:00:00Z}`."""
        number = Int(self.minimum, self.maximum)
        if not isinstance(raw, Mapping):
            return number.parse(raw)
        if set(raw) != {"old", "new", "start", "end"}:
            raise InvalidValue("is no gradual change: give old, new, start and end, and nothing else")
        numbers = [_within(name, number.parse, raw[name]) for name in ("old", "new")]
        moments = [_within(name, _parse_moment_s, raw[name]) for name in ("start", "end")]
        try:
            return GradualChange(old=numbers[0], new=numbers[1], start_s=moments[0], end_s=moments[1])
        except FixRequest as wrong:
            raise InvalidValue(f"is no gradual change: {wrong}") from wrong

    def plain(self, value: int | GradualChange[int]) -> Plain:
        """The number, or the change with its moments in UTC."""
        if isinstance(value, int):
            return value
        start, end = (_format_moment(moment_s) for moment_s in (value.start_s, value.end_s))
        return {"old": value.old, "new": value.new, "start": start, "end": end}


@dataclass(frozen=True, slots=True)
class Weights:
    """Fairness keys and their weights."""

    name: str = "weights"
    bounds: str = "a mapping of fairness keys to positive numbers"

    def parse(self, raw: Plain) -> WeightOverrides:
        """A mapping, checked as the core checks it."""
        if not isinstance(raw, Mapping):
            raise InvalidValue(f"is no mapping: give {self.bounds}")
        weights: dict[str, float] = {}
        for key, weight in raw.items():
            if not isinstance(weight, int | float) or isinstance(weight, bool):
                raise InvalidValue(f"gives fairness key {key!r} a weight that is no number")
            if not 0 < weight < math.inf or weight > 1e9:
                raise InvalidValue(f"gives fairness key {key!r} a weight that is not above 0 and at most 1e9")
            weights[key] = float(weight)
        try:
            return WeightOverrides(weights)
        except FixRequest as wrong:
            raise InvalidValue(f"can't be used: {wrong}") from wrong

    def plain(self, value: WeightOverrides) -> Plain:
        """The mapping."""
        return dict(value)


def _within(name: str, parse: Callable[[Plain], T], raw: Plain) -> T:
    try:
        return parse(raw)
    except InvalidValue as wrong:
        raise InvalidValue(f"is no gradual change: {name} {wrong}") from wrong


def _parse_moment_s(raw: Plain) -> float:
    """Seconds of the wall clock. A zone is demanded: hosts in two zones must switch at the same moment."""
    try:
        moment = datetime.fromisoformat(raw) if isinstance(raw, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidValue("is no moment: write it like 2026-11-15T20:00:00Z, with its time zone")
    return moment.timestamp()


def _format_moment(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat().replace("+00:00", "Z")


def as_text(plain: Plain) -> str:
    """A value on one line, as a YAML file or a command line would take it."""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
