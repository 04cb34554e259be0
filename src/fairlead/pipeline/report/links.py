"""Links from the page into a console."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import STICKY
from fairlead.pipeline.report.markup import shown, tag

_TYPES = {1: "workflow", 2: "activity", 3: "nexus"}


class WrongConsole(FixRequest):
    """`--console` is not the address of a console."""


@dataclass(frozen=True, slots=True)
class Console:
    """The address of a console, like `http://127.0.0.1:8233/console`; without one, the page has names without links."""

    address: str = ""

    @classmethod
    def at(cls, address: str | None) -> "Console":
        """Check the address."""
        if not address:
            return cls()
        try:
            parts = urlsplit(address)
            is_right = (
                parts.scheme in {"http", "https"} and bool(parts.hostname) and not (parts.query or parts.fragment)
            )
        except ValueError:
            is_right = False
        if not is_right:
            raise WrongConsole(f"--console {address}: give an address like http://127.0.0.1:8233/console")
        return cls(address.rstrip("/"))

    def task_queue(self, row: Mapping[str, Any], text: str) -> str:
        """Return the text as a link to the task queue of the row."""
        kind = _TYPES.get(row["task_type"])
        if kind is None or row["task_list"] == STICKY:
            return text
        namespace, version = _namespace(row["namespace_id"])
        return self._link(text, "task-queue", namespace=namespace, name=row["task_list"], type=kind, version=version)

    def workflow(self, namespace: str, workflow_id: str, run_id: str = "") -> str:
        """Return the id as a link to the workflow."""
        return self._link(workflow_id, "workflow", namespace=_namespace(namespace)[0], id=workflow_id, run=run_id)

    def workflows(self, namespace: str, text: str, query: str) -> str:
        """Return the text as a link to the list of the runs that a list filter selects."""
        return self._link(text, "workflows", namespace=_namespace(namespace)[0], query=query)

    def _link(self, text: str, path: str, **parameters: str | None) -> str:
        if not self.address:
            return shown(text)
        given = {name: value for name, value in parameters.items() if value}
        return tag("a", shown(text), href=f"{self.address}/{path}?{urlencode(given)}")


def _namespace(shown_name: str | None) -> tuple[str, str]:
    """Split a displayed name like `orders (version app:v1)` into the namespace's name and the version."""
    name, mark, version = (shown_name or "").partition(" (version ")
    return (name, version.removesuffix(")")) if mark else (name, "")
