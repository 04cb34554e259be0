"""Declaration of a dynamic setting, from which validation, listing and documentation derive."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar

from fairlead.settings.dynamic.kinds import Kind

T = TypeVar("T")


class Reach(IntEnum):
    """Smallest scope for which a setting can have its own value."""

    GLOBAL = 0
    NAMESPACE = 1
    TASK_QUEUE = 2

    @property
    def words(self) -> str:
        """Name for messages and documentation."""
        return "task queue" if self is Reach.TASK_QUEUE else self.name.lower()


@dataclass(frozen=True, slots=True, eq=False)
class Setting(Generic[T]):
    """A dynamic setting. Settings compare by identity, so a lookup compares no strings.

    `aliases` are other spellings of the key. `deviation` gives the default of Cadence or Temporal, and why this one
    differs (FL-71). `not_above` is a setting whose value this one must not exceed in any scope.
    """

    key: str
    kind: Kind[T]
    default: T
    reach: Reach
    about: str
    aliases: tuple[str, ...] = ()
    deviation: str = ""
    not_above: "Setting[Any] | None" = None

    def __post_init__(self) -> None:
        """Raise if the default is not a valid value of the setting."""
        self.kind.parse(self.kind.plain(self.default))

    @property
    def spellings(self) -> tuple[str, ...]:
        """The key, then the aliases."""
        return (self.key, *self.aliases)
