"""Test environments of Temporal's Python SDK that run Fairlead instead of a server that the SDK downloads."""

import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.core.errors import FixRequest

# Imported late, as in server.py: the sandbox of Temporal's SDK must not load more than it needs.
if TYPE_CHECKING:
    from temporalio.testing import WorkflowEnvironment

# Time for a server to start on a busy machine; the SDK's default is 5 seconds.
STARTUP = timedelta(seconds=60)


class CommandMissing(FixRequest):
    """A command of this package was not found."""


def command_path(name: str) -> str:
    """Find a command of this package: beside the running Python, or on the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise CommandMissing(
            f"command {name} is neither beside {sys.executable} nor on the PATH: install fairlead again"
        )
    return found


async def start_time_skipping(**options: Any) -> "WorkflowEnvironment":
    """`WorkflowEnvironment.start_time_skipping` on `fairlead-test-server`; takes the same options.

    async with await start_time_skipping() as env:
        await env.client.execute_workflow(...)
    """
    from temporalio.testing import WorkflowEnvironment  # noqa: PLC0415

    defaults = {
        "test_server_existing_path": command_path("fairlead-test-server"),
        "test_server_startup_timeout": STARTUP,
    }
    return await WorkflowEnvironment.start_time_skipping(**{**defaults, **options})


async def start_local(**options: Any) -> "WorkflowEnvironment":
    """`WorkflowEnvironment.start_local` on `fairlead server start-dev`; takes the same options."""
    from temporalio.testing import WorkflowEnvironment  # noqa: PLC0415

    return await WorkflowEnvironment.start_local(**{**_dev_server(), **options})


async def start_time_skipping_v2(**options: Any) -> "WorkflowEnvironment":
    """`WorkflowEnvironment.start_time_skipping_v2` on `fairlead server start-dev`: each workflow has its own clock."""
    from temporalio.testing import WorkflowEnvironment  # noqa: PLC0415

    enabled = ["--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true"]
    options["dev_server_extra_args"] = [*enabled, *options.get("dev_server_extra_args", ())]
    return await WorkflowEnvironment.start_time_skipping_v2(**{**_dev_server(), **options})


def _dev_server() -> dict[str, Any]:
    return {"dev_server_existing_path": command_path("fairlead"), "dev_server_startup_timeout": STARTUP}
