"""Imports the libraries of a server without the parts that a server never uses.

- structlog loads `rich` if it is installed, for tracebacks that show variables. Our logs never show variables.
- Temporal's messages are in the package of its Python SDK, whose `__init__` loads the SDK's client and Rust core.
- The packages of the messages load grpcio for their stubs if it is installed. Fairlead has an HTTP/2 implementation of
  its own and never needs it.

Together these parts would take a third of the CPU time until a server is ready.
"""

import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_MESSAGES = ("temporalio.api.workflowservice.v1", "temporalio.api.operatorservice.v1")


def import_lean(*messages: str) -> None:
    """Import these libraries without their unused parts, unless they are imported already.

    `messages` are further packages of Temporal's messages. Garbage collection is off until the server is ready, since
    nothing that is loaded here is freed.
    """
    gc.disable()
    if "structlog" not in sys.modules:
        with _hidden("rich"):
            import_module("structlog")
    if "temporalio" not in sys.modules:
        sys.modules["temporalio"] = _deferred("temporalio")
        with _hidden("grpc"):
            for name in (*_MESSAGES, *messages):
                import_module(name)


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Make an import of `name` fail within the block, as if it was not installed."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment] # None makes the import fail.
    try:
        yield
    finally:
        del sys.modules[name]


class _DeferredPackage(ModuleType):
    """A package whose `__init__` runs at the first access to an attribute that is missing."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        # The import system itself reads dunder attributes, which must not run `__init__`.
        if (name.startswith("__") and name != "__version__") or spec is None or spec.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment] # An ordinary module from now on.
        spec.loader.exec_module(self)
        return getattr(self, name)


def _deferred(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"no package named {name!r}", name=name)
    package = _DeferredPackage(name)
    package.__spec__ = spec
    package.__loader__ = spec.loader
    package.__file__ = spec.origin
    package.__package__ = name
    package.__path__ = list(spec.submodule_search_locations)
    return package
