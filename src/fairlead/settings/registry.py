"""Finds a setting by its key, and tells the nearest one where there is none."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from fairlead.core.errors import GiveUp
from fairlead.settings.declaration import Setting
from fairlead.settings.problem import UnknownSetting

# A longer key is no misspelling of one of ours, and comparing it would take time.
_SUGGESTED_CHARACTERS_MAX = 100


class ConflictingDeclarations(GiveUp):
    """Two settings were declared under one key."""


class Registry:
    """All settings, by every spelling; the case of letters does not matter, as in Temporal's files."""

    def __init__(self, settings: Iterable[Setting[Any]]) -> None:
        self._by_key: dict[str, Setting[Any]] = {}
        for setting in settings:
            for spelling in setting.spellings:
                other = self._by_key.setdefault(spelling.lower(), setting)
                if other is not setting:
                    raise ConflictingDeclarations(f"{spelling} was declared as {setting.key} and as {other.key}")
        self._settings = tuple(sorted(set(self._by_key.values()), key=lambda setting: setting.key.lower()))

    def __iter__(self) -> Iterator[Setting[Any]]:
        return iter(self._settings)

    def find(self, key: str) -> Setting[Any]:
        """The setting of this key or alias; raise `UnknownSetting`, with the nearest known key, if there is none."""
        setting = self._by_key.get(key.lower())
        if setting is None:
            raise UnknownSetting(f"{shortened(key)} is no setting{self._suggestion(key)}")
        return setting

    def _suggestion(self, key: str) -> str:
        if len(key) > _SUGGESTED_CHARACTERS_MAX:
            return ""
        for nearest in get_close_matches(key.lower(), self._by_key, n=1):
            setting = self._by_key[nearest]
            spelling = next(spelling for spelling in setting.spellings if spelling.lower() == nearest)
            return f": did you mean {spelling}?"
        return ": `fairlead config list` shows all"


def shortened(text: str) -> str:
    """`text` in quotes, cut where it is too long for a message."""
    return repr(text if len(text) <= _SUGGESTED_CHARACTERS_MAX else text[: _SUGGESTED_CHARACTERS_MAX - 3] + "...")
