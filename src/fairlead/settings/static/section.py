"""Reads one mapping of a configuration file key by key, and collects errors with their lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from fairlead.settings.document import entries_of, line_of, plain_of
from fairlead.settings.dynamic.file import PROBLEMS_MAX
from fairlead.settings.dynamic.kinds import Plain
from fairlead.settings.dynamic.registry import shortened
from fairlead.settings.problem import InvalidValue, Problem

if TYPE_CHECKING:
    import yaml
else:
    from fairlead.settings.lazy_yaml import yaml

T = TypeVar("T")

SUGGESTED_CHARACTERS_MAX = 100


class Section:
    """One mapping of the file. Each key is read once; `close` reports the keys that no code has read."""

    def __init__(self, node: yaml.Node | None, path: str, problems: list[Problem]) -> None:
        self._path = path
        self._problems = problems
        self._known: list[str] = []
        self._entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        self._node = None if node is None or _is_null(node) else node
        if node is None or _is_null(node):
            return
        name = path.rstrip(".") or "the file"
        if not isinstance(node, yaml.MappingNode):
            self.complain(node, f"{name} is not a mapping of keys to values")
            return
        try:
            entries = entries_of(node)
        except InvalidValue as wrong:
            self.complain(node, f"{name} {wrong}")
            return
        for key, entry in entries.items():
            if _normal(key) in self._entries:
                self.complain(entry[0], f"{path}{shortened(key)} is another spelling of a given key: keep one")
            self._entries.setdefault(_normal(key), entry)

    @property
    def is_given(self) -> bool:
        """Whether the file has this section, even if empty."""
        return self._node is not None

    @property
    def has_problems(self) -> bool:
        """Whether any error was found in the file so far."""
        return bool(self._problems)

    def complain_here(self, message: str) -> None:
        """Report an error of the whole section, if the file has it."""
        if self._node is not None:
            self.complain(self._node, f"{self._path.rstrip('.')} {message}")

    def complain(self, node: yaml.Node, message: str) -> None:
        """Report an error at a node."""
        self._problems.append(Problem(line_of(node), message))

    def complain_of(self, key: str, message: str) -> None:
        """Report an error of a key that the section has."""
        self.complain(self._entries[_normal(key)][0], f"{self._path}{key}{message}")

    def given(self, *keys: str) -> list[str]:
        """Keys, of those asked for, that the section has."""
        self._known += keys
        return [key for key in keys if _normal(key) in self._entries]

    def section(self, key: str) -> Section:
        """Mapping below `key`; empty if the file has no such key."""
        _, node = self._entries[_normal(key)] if self.given(key) else (None, None)
        return Section(node, f"{self._path}{key}.", self._problems)

    def sections(self) -> list[tuple[str, Section]]:
        """All mappings below this one, with their keys."""
        named = [(str(node.value), below) for node, below in self._entries.values()]
        self._known += [name for name, _ in named]
        return [(name, Section(below, f"{self._path}{name}.", self._problems)) for name, below in named]

    def names(self) -> list[str]:
        """All keys of this mapping, for one whose keys are names."""
        return [str(node.value) for node, _ in self._entries.values()]

    def value(self, key: str, parse: Callable[[Plain], T], default: T, *, is_secret: bool = False) -> T:
        """Parse the value of `key`. Returns the default if it is missing or invalid; reports an invalid value."""
        if not self.given(key):
            return default
        _, node = self._entries[_normal(key)]
        if _is_null(node):
            return default
        shown = "the value"
        try:
            raw = plain_of(node)
            shown = shown if is_secret else _shown(raw)
            return parse(raw)
        except InvalidValue as wrong:
            self.complain(node, f"{self._path}{key}: {shown} {wrong}")
            return default

    def close(self) -> None:
        """Report the keys of the section that no code has read."""
        known = {_normal(key): key for key in self._known}
        for name, (node, _) in self._entries.items():
            # A file that is not a configuration at all may have very many unknown keys.
            if name not in known and len(self._problems) < PROBLEMS_MAX:
                nearest = get_close_matches(name[:SUGGESTED_CHARACTERS_MAX], known, n=1)
                allowed = f"use {', '.join(known.values())}" if known else "nothing belongs here"
                hint = f"did you mean {known[nearest[0]]}?" if nearest else allowed
                self.complain(node, f"{self._path}{shortened(str(node.value))[1:-1]} is unknown: {hint}")


def _normal(key: str) -> str:
    return key.lower().replace("_", "")


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _shown(raw: Plain) -> str:
    """Short form of a value, for messages."""
    return shortened(raw) if isinstance(raw, str) else shortened(json.dumps(raw))[1:-1]
