"""Section `namespaces` of the static configuration: namespaces to create when a process starts."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from fairlead.settings.dynamic.kinds import Duration, Plain
from fairlead.settings.problem import InvalidValue

T = TypeVar("T")

NAMESPACES_MAX = 1_000
SEARCH_ATTRIBUTES_MAX = 1_000
NAME_CHARACTERS_MAX = 255
RETENTION_S_DEFAULT = 86_400.0
_RETENTION = Duration(3_600.0, 10 * 365 * 86_400.0)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


class SearchAttributeType(StrEnum):
    """Types of search attributes, with their names in Temporal's commands."""

    TEXT = "Text"
    KEYWORD = "Keyword"
    INT = "Int"
    DOUBLE = "Double"
    BOOL = "Bool"
    DATETIME = "Datetime"
    KEYWORD_LIST = "KeywordList"


_TYPES = {kind.lower(): kind for kind in SearchAttributeType}


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """A namespace that the start creates if it is missing, or to which it adds missing search attributes."""

    name: str
    retention_s: float = RETENTION_S_DEFAULT
    search_attributes: Mapping[str, SearchAttributeType] = field(default_factory=dict)


def parse_namespaces(raw: Plain) -> tuple[NamespaceConfig, ...]:
    """Read a list of namespaces; each item is a name or a mapping."""
    if not isinstance(raw, list):
        raise InvalidValue("is not a list: write namespaces: [{name: orders, retention: 72h}]")
    if len(raw) > NAMESPACES_MAX:
        raise InvalidValue(f"has {len(raw)} namespaces: name {NAMESPACES_MAX} at most, and create the others later")
    found = tuple(_parse_namespace(item) for item in raw)
    names = [namespace.name for namespace in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidValue(f"has {', '.join(twice)} twice: name each once")
    return found


def parse_namespace_name(raw: Plain) -> str:
    """Read the name of a namespace."""
    if not isinstance(raw, str) or len(raw) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(raw):
        raise InvalidValue(
            "is not a valid namespace name: use letters, digits, '.', '_' and '-', beginning with a letter or a digit, "
            f"{NAME_CHARACTERS_MAX} at most"
        )
    return raw


def parse_search_attributes(raw: Plain) -> dict[str, SearchAttributeType]:
    """Read a mapping of names to types."""
    if not isinstance(raw, dict):
        raise InvalidValue("is not a mapping of search attributes: write {Customer: Keyword}")
    if len(raw) > SEARCH_ATTRIBUTES_MAX:
        raise InvalidValue(f"has {len(raw)} search attributes: {SEARCH_ATTRIBUTES_MAX} at most")
    return {_parse_attribute_name(name): _parse_type(name, kind) for name, kind in raw.items()}


def _parse_namespace(raw: Plain) -> NamespaceConfig:
    if isinstance(raw, str):
        return NamespaceConfig(_named("a name", raw, parse_namespace_name))
    if not isinstance(raw, dict) or "name" not in raw:
        raise InvalidValue("has an item without a name: write {name: orders}")
    name = _named("its name", raw["name"], parse_namespace_name)
    unknown = sorted(raw.keys() - {"name", "retention", "searchAttributes"})
    if unknown:
        raise InvalidValue(f"has {unknown[0]!r} in namespace {name}: use name, retention, searchAttributes")
    return NamespaceConfig(
        name,
        _named(f"the retention of {name}", raw.get("retention", "24h"), _RETENTION.parse),
        parse_search_attributes(raw.get("searchAttributes", {})),
    )


def _parse_attribute_name(name: str) -> str:
    if len(name) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        raise InvalidValue(f"has {name[:NAME_CHARACTERS_MAX]!r}, which is not a valid name of a search attribute")
    return name


def _parse_type(name: str, raw: Plain) -> SearchAttributeType:
    found = _TYPES.get(raw.lower()) if isinstance(raw, str) else None
    if found is None:
        raise InvalidValue(f"has {raw!r} as the type of {name}: choose {', '.join(SearchAttributeType)}")
    return found


def _named(what: str, raw: Plain, parse: Callable[[Plain], T]) -> T:
    """Parse a part of a namespace; an error names the part and its value."""
    try:
        return parse(raw)
    except InvalidValue as wrong:
        raise InvalidValue(f"is wrong: {what}, {raw!r}, {wrong}") from wrong
