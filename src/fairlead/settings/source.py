"""The settings in force: defaults, then the settings file, then the command line, and the file may change any time."""

import json
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fairlead.settings.catalogue import SETTINGS
from fairlead.settings.declaration import Setting
from fairlead.settings.document import FILE_BYTES_MAX
from fairlead.settings.file import parse_file
from fairlead.settings.kinds import Plain
from fairlead.settings.problem import InvalidSettings, InvalidValue, Problem, UnknownSetting
from fairlead.settings.registry import Registry, shortened
from fairlead.settings.rules import EVERYWHERE, Rule, RuleSet, Scope

T = TypeVar("T")

# Values that depend on their scope are remembered for so many scopes; then the memory starts anew.
CACHED_VALUES_MAX = 100_000
# Stands for a value that depends on the scope.
_DEPENDS = object()


class Outcome(StrEnum):
    """What a look at the settings file found."""

    UNCHANGED = "unchanged"
    LOADED = "loaded"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Reload:
    """What a look at the settings file did. A bad file is told once, by `problems`, and the last good one stays."""

    outcome: Outcome
    changed: tuple[Setting[Any], ...] = ()
    problems: tuple[Problem, ...] = ()


class _Version(NamedTuple):
    """What tells one state of a file from another."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    # Also changes with the permissions, and where a copy has kept the time of modification.
    changed_ns: int


class _Listener(NamedTuple):
    setting: Setting[Any]
    scope: Scope
    tell: Callable[[Any], None]


class DynamicSettings:
    """Answers what is in force where, about as fast as a dictionary does.

    `file` is read at once, and again by `reload`, which the owner calls on a timer of a second or slower. `overrides`
    are values from the command line by key: each replaces all that the file says about its setting.
    """

    def __init__(
        self, *, file: Path | None = None, overrides: Mapping[str, Plain] | None = None, registry: Registry = SETTINGS
    ) -> None:
        self._registry = registry
        self._file = file
        self._overrides = _parse_overrides(overrides or {}, registry)
        self._listeners: dict[int, _Listener] = {}
        self._listeners_ever = 0
        self._version: _Version | None = None
        self._is_settled = False
        self._content: bytes | None = None
        content: bytes | None = b""
        problems: tuple[Problem, ...] = ()
        if file is not None:
            self._version = _version_of(file)
            content, problems = read_file(file)
            self._content = content
        if content is not None:
            rules, problems = self._parse(content)
            self._put_in_force(rules)
        if problems:
            raise InvalidSettings("the command line" if file is None else str(file), problems)

    def get(self, setting: Setting[T], scope: Scope = EVERYWHERE) -> T:
        """The value in force for this scope."""
        value: T = self._values[setting]
        if value is _DEPENDS:
            try:
                value = self._cache[setting, scope]
            except KeyError:
                value = self._resolve(setting, scope)
        return value

    def rule(self, setting: Setting[T], scope: Scope = EVERYWHERE) -> Rule[T] | None:
        """Where the value in force comes from: a rule of the file or, without a line, of the command line; or None."""
        return self._rules.find(setting, scope)

    def subscribe(
        self, setting: Setting[T], tell: Callable[[T], None], scope: Scope = EVERYWHERE
    ) -> Callable[[], None]:
        """Have `tell` called with every new value for this scope, until the function that is returned is called."""
        self._listeners_ever += 1
        number = self._listeners_ever
        self._listeners[number] = _Listener(setting, scope, tell)

        def end() -> None:
            self._listeners.pop(number, None)

        return end

    def reload(self) -> Reload:
        """Look at the file; put it into force if it has changed and all of it is right, and tell the listeners.

        A file that is gone, or bad, changes nothing; that is told once for each time that it went or each bad version.
        """
        if self._file is None:
            return Reload(Outcome.UNCHANGED)
        version = _version_of(self._file)
        if version == self._version and self._is_settled:
            return Reload(Outcome.UNCHANGED)
        # Two writes within one tick of the file system's clock look the same from outside, so a version is trusted
        # only when a second look, after the tick, has read the same.
        self._is_settled = version == self._version
        self._version = version
        content, problems = read_file(self._file)
        if content == self._content and (content is not None or self._is_settled):
            return Reload(Outcome.UNCHANGED)
        self._content = content
        if content is not None:
            rules, problems = self._parse(content)
            if not problems:
                return Reload(Outcome.LOADED, changed=self._replace(rules))
        return Reload(Outcome.MISSING if version is None else Outcome.REFUSED, problems=problems)

    def _parse(self, content: bytes) -> tuple[RuleSet, tuple[Problem, ...]]:
        parsed = parse_file(content, self._registry, self._overrides)
        return RuleSet(parsed.rules), parsed.problems

    def _put_in_force(self, rules: RuleSet) -> None:
        self._rules = rules
        self._values: dict[Setting[Any], Any] = {
            setting: _DEPENDS if rules.has_constraints(setting) else rules.value(setting, EVERYWHERE)
            for setting in self._registry
        }
        self._cache: dict[tuple[Setting[Any], Scope], Any] = {}

    def _resolve(self, setting: Setting[T], scope: Scope) -> T:
        if len(self._cache) >= CACHED_VALUES_MAX:
            self._cache.clear()
        value = self._cache[setting, scope] = self._rules.value(setting, scope)
        return value

    def _replace(self, rules: RuleSet) -> tuple[Setting[Any], ...]:
        """Put the rules into force, then tell whoever listens to a value that is another now."""
        before = self._rules
        self._put_in_force(rules)
        changed = {setting: None for setting in self._registry if before.values(setting) != rules.values(setting)}
        failures: list[Exception] = []
        for setting, scope, tell in tuple(self._listeners.values()):
            value = self.get(setting, scope)
            if setting in changed and value != before.value(setting, scope):
                try:
                    tell(value)
                except Exception as failure:  # noqa: BLE001 - one listener's failure must not keep it from the others
                    failures.append(failure)
        if failures:
            raise ExceptionGroup("listeners failed; the new settings are in force", failures)
        return tuple(changed)


def parse_overrides(texts: Iterable[str]) -> dict[str, Plain]:
    """Read values of the form KEY=JSON, as `--dynamic-config-value` takes them."""
    overrides: dict[str, Plain] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InvalidValue(f"--dynamic-config-value {shortened(text)} is not of the form KEY=JSON")
        if key.lower() in {other.lower() for other in overrides}:
            raise InvalidValue(f"--dynamic-config-value {key} is given twice: keep one")
        try:
            overrides[key] = json.loads(value)
        except (ValueError, RecursionError) as wrong:
            raise InvalidValue(
                f"--dynamic-config-value {key}: {shortened(value)} is not JSON: put a text in double quotes"
            ) from wrong
    return overrides


def _parse_overrides(overrides: Mapping[str, Plain], registry: Registry) -> tuple[Rule[Any], ...]:
    rules: dict[Setting[Any], Rule[Any]] = {}
    problems: list[Problem] = []
    for key, raw in overrides.items():
        try:
            setting = registry.find(key)
            rule = Rule(setting, EVERYWHERE, setting.kind.parse(raw))
        except UnknownSetting as unknown:
            problems.append(Problem(None, str(unknown)))
        except InvalidValue as wrong:
            problems.append(Problem(None, f"{key}: {shortened(json.dumps(raw))} {wrong}"))
        else:
            if rules.setdefault(setting, rule).value != rule.value:
                problems.append(Problem(None, f"{key} is another spelling of {setting.key}, which is given: keep one"))
    if problems:
        raise InvalidSettings("the command line", problems)
    return tuple(rules.values())


def read_file(file: Path) -> tuple[bytes | None, tuple[Problem, ...]]:
    """The file's content, one byte too many at most, or why there is none."""
    try:
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(file.stat().st_mode):
            return None, (Problem(None, f"{file} is no regular file"),)
        with file.open("rb") as opened:
            return opened.read(FILE_BYTES_MAX + 1), ()
    except OSError as refused:
        return None, (Problem(None, f"{file} can't be read: {refused.strerror or refused}"),)


def _version_of(file: Path) -> _Version | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return _Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
