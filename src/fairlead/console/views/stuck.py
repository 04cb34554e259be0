"""Why a workflow or an activity is stuck: one sentence, what to do, and the evidence."""

import math
from typing import Final

from msgspec import Struct

from fairlead.console.context import Context
from fairlead.console.diagnosis import diagnose
from fairlead.console.findings import Finding
from fairlead.console.runs import describe, status_name
from fairlead.console.stuck import collect
from fairlead.console.stuck_facts import QueueFacts
from fairlead.console.view import Parameters, View
from fairlead.http import HttpFault


class Asked(Parameters, frozen=True, kw_only=True):
    """Parameters: a workflow, its run or else its latest one, and possibly one of its activities."""

    id: str = ""
    run: str = ""
    activity: str = ""


class Stuck(Struct, frozen=True, kw_only=True):
    """The diagnosis of one run: the findings, the most important first, and the task queues that they are about."""

    id: str
    run: str
    type: str
    status: str
    findings: list[Finding]
    queues: list[QueueFacts]
    # Id of the activity if only this one was asked about.
    activity: str = ""
    # Number of pending activities that were not examined.
    unexamined: int = 0


async def load(context: Context, asked: Asked) -> Stuck:
    """Diagnose a run."""
    if not asked.id:
        raise HttpFault(400, "the address names no workflow: add id=...")
    described = await describe(context, asked.namespace, asked.id, asked.run)
    info = described.workflow_execution_info
    facts = await collect(context, asked.namespace, described, asked.activity)
    queues: dict[tuple[str, str], QueueFacts] = {}
    # The place of the first activity counts, if several are in one task queue.
    for queue in sorted((task.queue for task in facts.tasks if task.queue), key=lambda one: one.position or math.inf):
        queues.setdefault((queue.name, queue.type), queue)
    return Stuck(
        id=info.execution.workflow_id,
        run=info.execution.run_id,
        type=info.type.name,
        status=status_name(info.status),
        findings=diagnose(facts),
        queues=[*queues.values()],
        activity=asked.activity,
        unexamined=facts.unexamined,
    )


VIEW: Final = View(path="stuck", title="Why is it stuck?", parameters=Asked, load=load, template="stuck.html")
