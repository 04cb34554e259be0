"""Errors of settings: in a value, at a line of a settings file, or in the whole file."""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.errors import FixRequest


class InvalidValue(FixRequest):
    """A value has the wrong type or is out of bounds; the message is a predicate to follow the value's name."""


class UnknownSetting(FixRequest):
    """No setting has this key."""


class SettingWithoutEffect(UnknownSetting):
    """The key is a setting of Temporal's server that has no effect here."""


class InvalidSettings(FixRequest):
    """A settings file or a value from the command line can't be used; `problems` has all errors."""

    def __init__(self, source: str, problems: Sequence["Problem"]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        super().__init__(f"{source} has {count}: " + "; ".join(str(problem) for problem in problems))


class Problem(NamedTuple):
    """One error and its line, counted from 1; None for an error without a line."""

    line: int | None
    message: str

    def __str__(self) -> str:
        return self.message if self.line is None else f"line {self.line}: {self.message}"
