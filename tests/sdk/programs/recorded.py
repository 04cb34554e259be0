"""The programs whose histories are recorded for the tests of the mutable state; their histories have no races."""

from datetime import timedelta
from typing import Any

from temporalio.common import Priority

from tests.history import reference_programs as programs
from tests.sdk.stage import PROGRAMS, Stage

# The workflow, its arguments, and the options of its start.
_CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "hello": (programs.Hello.run, ("you",), {"memo": {"m": 1}, "static_summary": "hi", "static_details": "details"}),
    "priority": (
        programs.OneActivity.run,
        ("p",),
        {
            "priority": Priority(priority_key=1, fairness_key="tenant", fairness_weight=2.0),
            "run_timeout": timedelta(minutes=5),
            "execution_timeout": timedelta(minutes=9),
            "task_timeout": timedelta(seconds=7),
        },
    ),
    "timer": (programs.Timer.run, (), {}),
    "timer_canceled": (programs.CanceledTimer.run, (), {}),
    "markers": (programs.Markers.run, (), {}),
    "upserts": (programs.Upserts.run, (), {"memo": {"gone": 1}}),
    "continued_as_new": (
        programs.ContinuesAsNew.run, (2,), {"memo": {"first": True}, "execution_timeout": timedelta(minutes=3)},
    ),
    "child_exists": (programs.Parent.run, ("exists",), {}),
    "leaves_things_behind": (programs.LeavesThingsBehind.run, (), {}),
}  # fmt: skip


def _program(name: str) -> Any:
    workflow, args, options = _CASES[name]

    async def recorded(stage: Stage) -> Any:
        return await stage.run(workflow, *args, **options)

    return recorded


PROGRAMS.update({f"recorded_{name}": _program(name) for name in _CASES})
