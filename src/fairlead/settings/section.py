"""One mapping of a configuration file, read key by key: whatever is wrong is collected, with its line."""

import json
from collections.abc import Callable
from difflib import get_close_matches
from typing import TypeVar

import yaml

from fairlead.settings.document import entries_of, line_of, plain_of
from fairlead.settings.file import PROBLEMS_MAX
from fairlead.settings.kinds import Plain
from fairlead.settings.problem import InvalidValue, Problem
from fairlead.settings.registry import shortened

T = TypeVar("T")

SUGGESTED_CHARACTERS_MAX = 100


class Section:
    """One mapping of the file. Each key is read once; `close` complains about those that nobody has asked for."""

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
            self.complain(node, f"{name} is no mapping of keys to values")
            return
        try:
            entries = entries_of(node)
        except InvalidValue as wrong:
            self.complain(node, f"{name} {wrong}")
            return
        for key, entry in entries.items():
            if _normal(key) in self._entries:
                self.complain(entry[0], f"{path}{shortened(key)} is another spelling of a key that is given: keep one")
            self._entries.setdefault(_normal(key), entry)

    @property
    def is_given(self) -> bool:
        """Whether the file has it, be it empty."""
        return self._node is not None

    @property
    def has_problems(self) -> bool:
        """Whether anything is wrong with the file so far."""
        return bool(self._problems)

    def complain_here(self, message: str) -> None:
        """Something is wrong with the section as a whole, which the file has."""
        if self._node is not None:
            self.complain(self._node, f"{self._path.rstrip('.')} {message}")

    def complain(self, node: yaml.Node, message: str) -> None:
        """Something is wrong here."""
        self._problems.append(Problem(line_of(node), message))

    def complain_of(self, key: str, message: str) -> None:
        """Something is wrong with a key that is given."""
        self.complain(self._entries[_normal(key)][0], f"{self._path}{key}{message}")

    def given(self, *keys: str) -> list[str]:
        """Those of the keys that the section has, whatever their values are."""
        self._known += keys
        return [key for key in keys if _normal(key) in self._entries]

    def section(self, key: str) -> "Section":
        """The mapping below `key`; an empty one where there is none."""
        _, node = self._entries[_normal(key)] if self.given(key) else (None, None)
        return Section(node, f"{self._path}{key}.", self._problems)

    def sections(self) -> "list[tuple[str, Section]]":
        """All mappings below this one, by the names that the file gives them."""
        named = [(str(node.value), below) for node, below in self._entries.values()]
        self._known += [name for name, _ in named]
        return [(name, Section(below, f"{self._path}{name}.", self._problems)) for name, below in named]

    def value(self, key: str, parse: Callable[[Plain], T], default: T, *, is_secret: bool = False) -> T:
        """The value of `key`; the default where there is none, or a bad one, which is complained of."""
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
        """Complain of what the section has and nobody has asked for."""
        known = {_normal(key): key for key in self._known}
        for name, (node, _) in self._entries.items():
            # A file that is no configuration at all may have very many.
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
    """A value for a message: short, whatever it is."""
    return shortened(raw) if isinstance(raw, str) else shortened(json.dumps(raw))[1:-1]
