"""Kinds of setting values: parsing, bounds and formatting of each."""

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

# A value as JSON or YAML represent it.
Plain: TypeAlias = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None


class Kind(Protocol[T]):
    """Parses and formats one kind of value. `name` and `bounds` are for documentation and messages."""

    @property
    def name(self) -> str:
        """Name of the kind in the reference."""
        ...

    @property
    def bounds(self) -> str:
        """Allowed values in words; empty if all values of the type are."""
        ...

    def parse(self, raw: Plain) -> T:
        """Parse a value from a file or the command line; raise `InvalidValue` if it is not of this kind."""
        ...

    def plain(self, value: T) -> Plain:
        """Format a value for a file, so that `parse` reads it back."""
        ...


@dataclass(frozen=True, slots=True)
class Bool:
    """True or false."""

    name: str = "bool"
    bounds: str = ""

    def parse(self, raw: Plain) -> bool:
        """Accept only true and false: 0, 1 and texts are usually mistakes."""
        if not isinstance(raw, bool):
            raise InvalidValue("is not a bool: write true or false")
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
        """Accept only whole numbers within the bounds."""
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise InvalidValue(f"is not a whole number: write one from {self.bounds}, without quotes")
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
        """Accept any number within the bounds, which excludes NaN."""
        if not isinstance(raw, int | float) or isinstance(raw, bool):
            raise InvalidValue(f"is not a number: write one from {self.bounds}, without quotes")
        # Compare before the conversion: a whole number may be too large for a float.
        if not self.minimum <= raw <= self.maximum:
            raise InvalidValue(f"is out of bounds: choose {self.bounds}")
        return float(raw)

    def plain(self, value: float) -> Plain:
        """The value itself, as an integer if it is whole."""
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
        raise InvalidValue(f"is not one of the choices: {self.bounds}")

    def plain(self, value: E) -> Plain:
        """The name."""
        return value.value


@dataclass(frozen=True, slots=True)
class GradualInt:
    """A whole number, or a gradual change from one number to another between two points in time."""

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
            raise InvalidValue("is not a gradual change: give old, new, start and end, and nothing else")
        numbers = [_within(name, number.parse, raw[name]) for name in ("old", "new")]
        moments = [_within(name, _parse_moment_s, raw[name]) for name in ("start", "end")]
        try:
            return GradualChange(old=numbers[0], new=numbers[1], start_s=moments[0], end_s=moments[1])
        except FixRequest as wrong:
            raise InvalidValue(f"is not a gradual change: {wrong}") from wrong

    def plain(self, value: int | GradualChange[int]) -> Plain:
        """The number, or the change with its times in UTC."""
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
        """Accept a mapping that satisfies the limits of `WeightOverrides`."""
        if not isinstance(raw, Mapping):
            raise InvalidValue(f"is not a mapping: give {self.bounds}")
        weights: dict[str, float] = {}
        for key, weight in raw.items():
            if not isinstance(weight, int | float) or isinstance(weight, bool):
                raise InvalidValue(f"gives fairness key {key!r} a weight that is not a number")
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


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of texts."""

    items_max: int
    characters_max: int
    name: str = "texts"

    @property
    def bounds(self) -> str:
        """The bounds of the list and of one text."""
        return f"a list of up to {self.items_max} texts of 1 to {self.characters_max} characters"

    def parse(self, raw: Plain) -> tuple[str, ...]:
        """Accept a list within the bounds."""
        if not isinstance(raw, list) or len(raw) > self.items_max:
            raise InvalidValue(f"is not a list: give {self.bounds}")
        texts: list[str] = []
        for text in raw:
            if not isinstance(text, str) or not 0 < len(text) <= self.characters_max:
                raise InvalidValue(f"has an item that is not a text of 1 to {self.characters_max} characters")
            texts.append(text)
        return tuple(texts)

    def plain(self, value: tuple[str, ...]) -> Plain:
        """The list."""
        return list(value)


def _within(name: str, parse: Callable[[Plain], T], raw: Plain) -> T:
    try:
        return parse(raw)
    except InvalidValue as wrong:
        raise InvalidValue(f"is not a gradual change: {name} {wrong}") from wrong


def _parse_moment_s(raw: Plain) -> float:
    """Parse a time into seconds since the epoch; the zone is required, so that hosts in two zones switch together."""
    try:
        moment = datetime.fromisoformat(raw) if isinstance(raw, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidValue("is not a time: write it like 2026-11-15T20:00:00Z, with its time zone")
    return moment.timestamp()


def _format_moment(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat().replace("+00:00", "Z")


def as_text(plain: Plain) -> str:
    """Format a value on one line, for a YAML file or a command line."""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
