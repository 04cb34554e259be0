"""What a dynamic setting is: declared once, and everything else follows from the declaration."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar

from fairlead.settings.kinds import Kind

T = TypeVar("T")


class Reach(IntEnum):
    """For how small a part of the system a setting may have a value of its own."""

    GLOBAL = 0
    NAMESPACE = 1
    TASK_LIST = 2

    @property
    def words(self) -> str:
        """As people read it."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True, eq=False)
class Setting(Generic[T]):
    """A dynamic setting. It is its own identity: a lookup by it costs no comparison of texts.

    `aliases` are other spellings of the same setting. `deviation` says where the default is not that of the documents
    that name the setting, and why. `not_above` is the setting whose value this one must not exceed in any scope.
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
        """Refuse a default that the setting itself would refuse."""
        self.kind.parse(self.kind.plain(self.default))

    @property
    def spellings(self) -> tuple[str, ...]:
        """Its key, then its aliases."""
        return (self.key, *self.aliases)
