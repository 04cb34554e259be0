"""The settings in force: defaults, overridden by the settings file (reloaded on change), then by the command line."""

import json
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fairlead.core.namespaces import NamespaceNames
from fairlead.settings.document import FILE_BYTES_MAX
from fairlead.settings.dynamic.catalogue import SETTINGS
from fairlead.settings.dynamic.declaration import Setting
from fairlead.settings.dynamic.file import parse_file
from fairlead.settings.dynamic.kinds import Plain
from fairlead.settings.dynamic.registry import Registry, shortened
from fairlead.settings.dynamic.rules import EVERYWHERE, Rule, RuleSet, Scope
from fairlead.settings.problem import InvalidSettings, InvalidValue, Problem, SettingWithoutEffect, UnknownSetting

T = TypeVar("T")

# Cached values of settings that depend on the scope; the cache is cleared when full.
CACHED_VALUES_MAX = 100_000
# Marks a setting whose value depends on the scope.
_DEPENDS = object()


class Outcome(StrEnum):
    """Result of reading the settings file again."""

    UNCHANGED = "unchanged"
    LOADED = "loaded"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Reload:
    """Result of a reload. `problems` reports a bad file once; the last good settings stay in force."""

    outcome: Outcome
    changed: tuple[Setting[Any], ...] = ()
    problems: tuple[Problem, ...] = ()


class _Version(NamedTuple):
    """Fingerprint of a file's state."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    # The change time of the file's status: it also changes with the permissions, and if a copy keeps the old
    # modification time.
    changed_ns: int


class _Listener(NamedTuple):
    settings: tuple[Setting[Any], ...]
    # A function that yields each scope with the listener for its values.
    scopes: Callable[[], Iterable[tuple[Scope, Callable[[Any], None]]]]


class DynamicSettings:
    """Looks up the value in force for a setting and scope, about as fast as a dictionary.

    The constructor reads `file`; `reload` reads it again, and the owner calls it every second or less often.
    `overrides` are values from the command line by key; each replaces all values of its setting in the file.
    """

    def __init__(
        self, *, file: Path | None = None, overrides: Mapping[str, Plain] | None = None, registry: Registry = SETTINGS
    ) -> None:
        self._registry = registry
        self._file = file
        self._overrides, self._overrides_without_effect = _parse_overrides(overrides or {}, registry)
        self._without_effect: tuple[str, ...] = ()
        self._listeners: dict[int, _Listener] = {}
        self._listeners_ever = 0
        self._revision = 0
        self._names = NamespaceNames()
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
        """Value in force for this scope."""
        value: T = self._values[setting]
        if value is _DEPENDS:
            try:
                value = self._cache[setting, scope]
            except KeyError:
                value = self._resolve(setting, scope)
        return value

    @property
    def revision(self) -> int:
        """Grows whenever a value may have changed; callers may cache results computed from settings until then."""
        return self._revision

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Keys of Temporal's server in the file and on the command line that have no effect here."""
        return tuple(dict.fromkeys((*self._overrides_without_effect, *self._without_effect)))

    def rule(self, setting: Setting[T], scope: Scope = EVERYWHERE) -> Rule[T] | None:
        """Rule that gives the value in force: from the file, or without a line from the command line; None: default."""
        return self._rules.find(setting, scope, self._name_of(scope))

    def use_names(self, names: NamespaceNames) -> None:
        """Let rules match a namespace by its name as well as by its id; without this call, only by the id."""
        self._names = names
        self._cache.clear()
        self._revision += 1
        names.on_change(self._rename)

    def subscribe(
        self, setting: Setting[T], notify: Callable[[T], None], scope: Scope = EVERYWHERE
    ) -> Callable[[], None]:
        """Call `notify` with every new value for this scope; the returned function ends the subscription."""
        return self.subscribe_all((setting,), notify, scope)

    def subscribe_all(
        self, settings: tuple[Setting[Any], ...], notify: Callable[[Any], None], scope: Scope = EVERYWHERE
    ) -> Callable[[], None]:
        """Like `subscribe`, but for several settings, with the memory that one subscription takes."""
        subscribed = ((scope, notify),)
        return self.subscribe_scopes(settings, lambda: subscribed)

    def subscribe_scopes(
        self,
        settings: tuple[Setting[Any], ...],
        scopes: Callable[[], Iterable[tuple[Scope, Callable[[Any], None]]]],
    ) -> Callable[[], None]:
        """Like `subscribe_all`, for all scopes that `scopes` yields at a change, in one subscription."""
        self._listeners_ever += 1
        number = self._listeners_ever
        self._listeners[number] = _Listener(settings, scopes)
        return partial(self._end, number)

    def _end(self, number: int) -> None:
        self._listeners.pop(number, None)

    def reload(self) -> Reload:
        """Read the file again; if it has changed and has no errors, put it into force and notify the listeners.

        A missing or bad file changes nothing, and is reported once: for each disappearance, and for each bad version.
        """
        if self._file is None:
            return Reload(Outcome.UNCHANGED)
        version = _version_of(self._file)
        if version == self._version and self._is_settled:
            return Reload(Outcome.UNCHANGED)
        # Two writes within one tick of the file system's clock have the same version, so trust a version only after a
        # second read, after the tick, has found the same version.
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
        if not parsed.problems:
            self._without_effect = parsed.without_effect
        return RuleSet(parsed.rules), parsed.problems

    def _put_in_force(self, rules: RuleSet) -> None:
        self._rules = rules
        self._revision += 1
        self._values: dict[Setting[Any], Any] = {
            setting: _DEPENDS if rules.has_constraints(setting) else rules.value(setting, EVERYWHERE)
            for setting in self._registry
        }
        self._cache: dict[tuple[Setting[Any], Scope], Any] = {}

    def _resolve(self, setting: Setting[T], scope: Scope) -> T:
        if len(self._cache) >= CACHED_VALUES_MAX:
            self._cache.clear()
        value = self._cache[setting, scope] = self._rules.value(setting, scope, self._name_of(scope))
        return value

    def _name_of(self, scope: Scope) -> str | None:
        return None if scope.namespace is None else self._names.find(scope.namespace)

    def _rename(self, namespace_id: str, before: str | None, after: str | None) -> None:
        """Handle a namespace's new name: drop cached values, and notify listeners whose value changes."""
        if not self._rules.mention(before) and not self._rules.mention(after):
            return
        self._cache.clear()
        self._revision += 1
        self._notify(
            (notify, setting, scope, self._rules.value(setting, scope, before))
            for listener in tuple(self._listeners.values())
            for scope, notify in tuple(listener.scopes())
            if scope.namespace == namespace_id
            for setting in listener.settings
        )

    def _replace(self, rules: RuleSet) -> tuple[Setting[Any], ...]:
        """Put the rules into force, then notify the listeners whose value changed."""
        before = self._rules
        self._put_in_force(rules)
        changed = {setting: None for setting in self._registry if before.values(setting) != rules.values(setting)}
        self._notify(
            (notify, setting, scope, before.value(setting, scope, self._name_of(scope)))
            for listener in tuple(self._listeners.values())
            if not changed.keys().isdisjoint(listener.settings)
            for scope, notify in tuple(listener.scopes())
            for setting in listener.settings
            if setting in changed
        )
        return tuple(changed)

    def _notify(self, before: Iterable[tuple[Callable[[Any], None], Setting[Any], Scope, Any]]) -> None:
        """Call each listener with the value in force, if it differs from the value before."""
        failures: list[Exception] = []
        for notify, setting, scope, value_before in before:
            value = self.get(setting, scope)
            if value != value_before:
                try:
                    notify(value)
                except Exception as failure:  # noqa: BLE001 - one listener's failure must not keep it from the others
                    failures.append(failure)
        if failures:
            raise ExceptionGroup("listeners failed; the new settings are in force", failures)


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


def _parse_overrides(
    overrides: Mapping[str, Plain], registry: Registry
) -> tuple[tuple[Rule[Any], ...], tuple[str, ...]]:
    """Parse values of the command line into rules, and collect the keys without effect."""
    rules: dict[Setting[Any], Rule[Any]] = {}
    problems: list[Problem] = []
    without_effect: list[str] = []
    for key, raw in overrides.items():
        try:
            setting = registry.find(key)
            rule = Rule(setting, EVERYWHERE, setting.kind.parse(raw))
        except SettingWithoutEffect:
            without_effect.append(key)
        except UnknownSetting as unknown:
            problems.append(Problem(None, str(unknown)))
        except InvalidValue as wrong:
            problems.append(Problem(None, f"{key}: {shortened(json.dumps(raw))} {wrong}"))
        else:
            if rules.setdefault(setting, rule).value != rule.value:
                problems.append(
                    Problem(None, f"{key} is another spelling of {setting.key}, which is also given: keep one")
                )
    if problems:
        raise InvalidSettings("the command line", problems)
    return tuple(rules.values()), tuple(without_effect)


def read_file(file: Path) -> tuple[bytes | None, tuple[Problem, ...]]:
    """Content of the file, at most one byte above the limit, or the reason why it can't be read."""
    try:
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(file.stat().st_mode):
            return None, (Problem(None, f"{file} is not a regular file"),)
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
