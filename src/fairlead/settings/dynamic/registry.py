"""Finds a setting by its key; for an unknown key, suggests the nearest known one."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from fairlead.core.errors import GiveUp
from fairlead.settings.dynamic.declaration import Setting
from fairlead.settings.problem import SettingWithoutEffect, UnknownSetting

# Characters of a key for which a suggestion is computed; a longer key is not a misspelling, and comparing takes time.
_SUGGESTED_CHARACTERS_MAX = 100


class ConflictingDeclarations(GiveUp):
    """Two settings were declared under one key."""


class Registry:
    """All settings, by key and alias; keys are case-insensitive, as in Temporal's files.

    `without_effect` maps keys of Temporal's server that have no effect here to the reason.
    """

    def __init__(self, settings: Iterable[Setting[Any]], without_effect: Mapping[str, str] | None = None) -> None:
        self._by_key: dict[str, Setting[Any]] = {}
        for setting in settings:
            for spelling in setting.spellings:
                other = self._by_key.setdefault(spelling.lower(), setting)
                if other is not setting:
                    raise ConflictingDeclarations(f"{spelling} was declared as {setting.key} and as {other.key}")
        self.without_effect = dict(without_effect or {})
        self._reasons = {key.lower(): reason for key, reason in self.without_effect.items()}
        both = sorted(self._reasons.keys() & self._by_key.keys())
        if both:
            raise ConflictingDeclarations(f"{', '.join(both)}: declared as a setting and as without effect")
        self._settings = tuple(sorted(set(self._by_key.values()), key=lambda setting: setting.key.lower()))

    def __iter__(self) -> Iterator[Setting[Any]]:
        return iter(self._settings)

    def find(self, key: str) -> Setting[Any]:
        """Find a setting by its key or alias; raise `UnknownSetting`, with the nearest known key, if it is unknown.

        A key of Temporal's server that has no effect here raises `SettingWithoutEffect`, with the reason.
        """
        setting = self._by_key.get(key.lower())
        reason = self._reasons.get(key.lower())
        if reason is not None:
            raise SettingWithoutEffect(f"{shortened(key)} has no effect here: {reason}")
        if setting is None:
            raise UnknownSetting(f"{shortened(key)} is not a setting{self._suggestion(key)}")
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
    """`text` in quotes, cut if it is too long for a message."""
    return repr(text if len(text) <= _SUGGESTED_CHARACTERS_MAX else text[: _SUGGESTED_CHARACTERS_MAX - 3] + "...")
