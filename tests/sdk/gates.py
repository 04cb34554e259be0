"""Places where a workflow task or an activity waits until the program lets it go on, so that nothing races."""

import asyncio
import threading
import time
from dataclasses import dataclass, field

from temporalio import activity, workflow

from tests.patience import PATIENCE_S

WAIT_S_MAX = PATIENCE_S
_CHECK_S = 0.005


@dataclass(slots=True)
class Gate:
    """The waiting code sets `reached`, the program sets `opened`. An open gate holds nothing, so replays pass."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)


_gates: dict[str, Gate] = {}
_done: set[str] = set()


def gate(workflow_id: str, name: str) -> Gate:
    return _gates.setdefault(f"{workflow_id}/{name}", Gate())


def hold_task(name: str) -> None:
    """Block the workflow task of the calling workflow at a gate."""
    place = gate(workflow.info().workflow_id, name)
    place.reached.set()
    if not place.opened.wait(WAIT_S_MAX):
        raise TimeoutError(f"gate {name} was never opened")


async def hold_activity(name: str) -> None:
    """Block the calling activity at a gate."""
    workflow_id = activity.info().workflow_id
    assert workflow_id is not None
    place = gate(workflow_id, name)
    place.reached.set()
    await wait_for(place.opened)


async def wait_for(event: threading.Event) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not event.is_set():
        if time.monotonic() > deadline_s:
            raise TimeoutError("a gate was never reached or opened")
        await asyncio.sleep(_CHECK_S)


def first_time(name: str) -> bool:
    """Whether the calling workflow gets here for the first time in this process; False in later replays."""
    key = f"{workflow.info().workflow_id}/{name}"
    if key in _done:
        return False
    _done.add(key)
    return True
