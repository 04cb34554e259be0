"""What is wrong with a setting's value, with one place of a settings file, or with the whole of it."""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.errors import FixRequest


class InvalidValue(FixRequest):
    """A value is of the wrong type or out of its bounds; the message goes on where the value was named."""


class UnknownSetting(FixRequest):
    """No setting has this key."""


class InvalidSettings(FixRequest):
    """A settings file or a value from the command line can't be used; `problems` holds all that is wrong."""

    def __init__(self, source: str, problems: Sequence["Problem"]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        super().__init__(f"{source} has {count}: " + "; ".join(str(problem) for problem in problems))


class Problem(NamedTuple):
    """One thing that is wrong, and where; `line` counts from 1 and is None where there is none."""

    line: int | None
    message: str

    def __str__(self) -> str:
        return self.message if self.line is None else f"line {self.line}: {self.message}"
