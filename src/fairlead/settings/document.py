"""Reads YAML with limits: no aliases, no deep nesting, only plain types; every node keeps its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.settings.dynamic.kinds import Plain
from fairlead.settings.problem import InvalidValue, Problem

if TYPE_CHECKING:
    import yaml
else:
    from fairlead.settings.lazy_yaml import yaml

FILE_BYTES_MAX = 1 << 20
# Levels of nesting; a settings file has four: keys, lists of values, values with constraints, and their fields.
DEPTH_MAX = 8
# Keys and values of a file: enough for 9,000 values with three constraints each, which take a second to read.
NODES_MAX = 100_000
# Characters of a number; no setting has a longer one, and parsing some takes time quadratic in the length.
NUMBER_CHARACTERS_MAX = 64

_TAG = "tag:yaml.org,2002:"
_NUMBERS_AND_BOOLS = {_TAG + name for name in ("bool", "int", "float")}
# Tags read as text. Only a setting that expects a timestamp parses one; elsewhere it stays text.
_TEXTS = {_TAG + name for name in ("str", "timestamp", "value", "merge")}


class Unreadable(Exception):
    """The file as a whole can't be read; `problem` says why and where."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def read_document(content: bytes) -> yaml.Node | None:
    """Root node of the only document in `content`, None if it is empty; raise `Unreadable` if it can't be read."""
    if len(content) > FILE_BYTES_MAX:
        raise Unreadable(Problem(None, f"the file is larger than {FILE_BYTES_MAX} bytes: remove values from it"))
    try:
        text = content.decode()
    except UnicodeDecodeError as wrong:
        line = content[: wrong.start].count(b"\n") + 1
        raise Unreadable(Problem(line, f"the file is not UTF-8 text: {wrong.reason}")) from wrong
    if not text:
        return None
    try:
        _check_bounds(text)
        root: yaml.Node | None = yaml.compose(text, Loader=_loader())
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        said = " ".join(part for part in (wrong.context, wrong.problem) if part)
        raise Unreadable(Problem(mark.line + 1 if mark else None, f"the file is not YAML: {said}")) from wrong
    except yaml.YAMLError as wrong:
        raise Unreadable(Problem(None, f"the file is not YAML: {' '.join(str(wrong).split())}")) from wrong
    return root


def line_of(node: yaml.Node) -> int:
    """Line on which `node` begins, counted from 1."""
    return int(node.start_mark.line) + 1


def plain_of(node: yaml.Node) -> Plain:
    """Value of `node` in plain types; raise `InvalidValue` for other types, and for non-text or repeated keys."""
    if isinstance(node, yaml.SequenceNode):
        return [plain_of(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {key: plain_of(value) for key, (_, value) in entries_of(node).items()}
    if node.tag == _TAG + "null":
        return None
    # YAML 1.1 reads 1:30 as a number to the base of 60, which no user intends.
    if node.tag in _TEXTS or (node.tag in _NUMBERS_AND_BOOLS and ":" in node.value):
        return str(node.value)
    if node.tag not in _NUMBERS_AND_BOOLS:
        raise InvalidValue(f"has the type {node.tag}, which no setting has")
    if len(node.value) > NUMBER_CHARACTERS_MAX:
        raise InvalidValue(f"is a number of more than {NUMBER_CHARACTERS_MAX} characters")
    try:
        plain: Plain = yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, KeyError, yaml.YAMLError) as wrong:
        # The tag does not fit the text, as in `!!int x`.
        raise InvalidValue("can't be read as the number or bool that it looks like") from wrong
    return plain


def entries_of(node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Entries of a mapping by key; raise `InvalidValue` if a key is not text or is repeated."""
    entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag not in _TEXTS:
            raise InvalidValue(f"has a key that is not text (line {line_of(key)}): put it in quotes")
        if key.value in entries:
            raise InvalidValue(f"has the key {key.value!r} twice (line {line_of(key)})")
        entries[key.value] = (key, value)
    return entries


def _check_bounds(text: str) -> None:
    """Raise at the first event that breaks a limit, before any node is built."""
    depth = documents = nodes = 0
    for event in yaml.parse(text, Loader=_loader()):
        # The parser marks every event; only the type stubs allow None.
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise Unreadable(Problem(line, f"the alias *{event.anchor} is not supported: write the value out"))
        nodes += isinstance(event, yaml.NodeEvent)
        if nodes > NODES_MAX:
            raise Unreadable(Problem(line, f"the file has more than {NODES_MAX} keys and values: remove some"))
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise Unreadable(Problem(line, "a second document begins here: put all settings into one"))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise Unreadable(Problem(line, f"the file is nested deeper than {DEPTH_MAX} levels"))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _loader() -> type[yaml.SafeLoader]:
    # PyYAML's own loader gives the same result as libyaml's, but is thirty times slower.
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
