"""Imports modules that the server does not need to start but needs soon, as soon as it is ready."""

import asyncio
from importlib import import_module
from typing import Final

# Seconds to wait, so that the first calls after the start are not slowed down.
WAIT_S: Final = 0.5

MODULES: Final = (
    # Importing these modules builds the parsers of list filters.
    "fairlead.api.search.grammar",
    "fairlead.frontend.validation.worker_query",
    # Needed by the first scrape of the metrics.
    "fairlead.telemetry.process_metrics",
)


async def warm_up() -> None:
    """Import the modules in a thread, one after another; calls are answered meanwhile."""
    await asyncio.sleep(WAIT_S)
    for name in MODULES:
        await asyncio.to_thread(import_module, name)
