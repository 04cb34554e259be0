"""PyYAML, imported on first use: a process without a settings file doesn't need it."""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType


def load_lazily(name: str) -> ModuleType:
    """Return the module `name`; its code runs at the first use."""
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name!r}", name=name)
    loader = spec.loader = LazyLoader(spec.loader)
    module = sys.modules[name] = module_from_spec(spec)
    loader.exec_module(module)
    return module


yaml = load_lazily("yaml")
