"""Names of namespaces: users read and write names, the services store ids."""

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, unquote

# Number of names in the cache, more than the registry holds. If it is exceeded, the oldest entry is dropped.
NAMES_MAX = 20_000

# Separates the parts of a qualified namespace id; no namespace id contains it.
VERSION_MARK = "#"

# Suffix for the display of an unregistered namespace id that equals the name of a registered namespace. Clients that
# use matching directly choose such ids.
UNREGISTERED = " (unregistered)"


class QualifiedNamespaceId(NamedTuple):
    """`<namespace id>#<qualifier>`: rows of a namespace that are kept apart from its other rows.

    The qualifier is the archetype of entities, or the worker version of task queues. Without one, the text is the
    namespace id itself.
    """

    namespace_id: str
    qualifier: str = ""

    @classmethod
    def parse(cls, text: str) -> "QualifiedNamespaceId":
        """Split the text into the namespace id and the qualifier."""
        base, _, qualifier = text.partition(VERSION_MARK)
        return cls(base, qualifier)

    @classmethod
    def of_version(cls, namespace_id: str, *, deployment: str, build_id: str) -> "QualifiedNamespaceId":
        """The id of the task queues of one worker version; each part is percent-encoded."""
        return cls(namespace_id, f"{quote(deployment, safe='')}:{quote(build_id, safe='')}")

    def __str__(self) -> str:
        return f"{self.namespace_id}{VERSION_MARK}{self.qualifier}" if self.qualifier else self.namespace_id


Listener = Callable[[str, str | None, str | None], None]


class NamespaceNames:
    """Maps namespace ids to names and back, without waiting.

    Names are unique: an id loses its name as soon as another id gets it, so after a namespace was deleted and another
    one was created with its name, the two are never confused. An unknown id has no name; callers then use the id
    itself.
    """

    def __init__(self, *, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._listeners: list[Listener] = []

    def __len__(self) -> int:
        return len(self._names)

    def on_change(self, listener: Listener) -> None:
        """Call `listener(namespace_id, name_before, name_after)` whenever an id's name changes; None means no name."""
        self._listeners.append(listener)

    def find(self, namespace_id: str) -> str | None:
        """Return the name of the namespace with this id; None if the id is unknown."""
        return self._names.get(namespace_id)

    def is_name(self, name: str) -> bool:
        """Whether some namespace has this name."""
        return name in self._ids

    def put(self, namespace_id: str, name: str) -> None:
        """Set the name of a namespace id."""
        before = self._names.get(namespace_id)
        if before == name:
            return
        holder = self._ids.get(name)
        if holder is not None:
            self.drop(holder)
        if before is not None:
            del self._ids[before]
        elif len(self._names) >= self._names_max:
            self.drop(next(iter(self._names)))
        self._names[namespace_id] = name
        self._ids[name] = namespace_id
        self._notify(namespace_id, before, name)

    def drop(self, namespace_id: str) -> None:
        """Forget the id of a deleted namespace."""
        before = self._names.pop(namespace_id, None)
        if before is not None:
            del self._ids[before]
            self._notify(namespace_id, before, None)

    def replace(self, names: dict[str, str]) -> None:
        """Replace all names by `names`, which maps ids to names."""
        for namespace_id in [known for known in self._names if known not in names]:
            self.drop(namespace_id)
        for namespace_id, name in names.items():
            self.put(namespace_id, name)

    def shown(self, namespace_id: str) -> str:
        """The namespace's name for display, or the id if it has no name; `namespace_id` may have a worker version."""
        return shown_namespace(*self.labels(namespace_id))

    def labels(self, namespace_id: str) -> tuple[str, str]:
        """The namespace and the worker version for display; no two ids have the same pair."""
        base, version = split_version(namespace_id)
        name = self._names.get(base)
        if name is None:
            name = f"{base}{UNREGISTERED}" if self.is_name(base) else base
        return name, version

    def _notify(self, namespace_id: str, before: str | None, after: str | None) -> None:
        for listener in self._listeners:
            listener(namespace_id, before, after)


def split_version(namespace_id: str) -> tuple[str, str]:
    """Split an id into the namespace id and the worker version, `<deployment>:<build id>` or empty."""
    base, version = QualifiedNamespaceId.parse(namespace_id)
    return base, unquote(version)


def shown_namespace(name: str, version: str) -> str:
    """Return the namespace for display, with the worker version if it is not empty."""
    return f"{name} (version {version})" if version else name
