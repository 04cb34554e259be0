"""Run programs against one server and write the results: `python -m tests.sdk.observe ADDRESS FOLDER NAME...`.

Each server has its own process: gates are not shared, and an abort of the SDK at exit affects nothing else.
"""

import argparse
import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetWorkflowExecutionHistoryRequest
from temporalio.client import Client
from temporalio.service import RPCError

from tests.sdk.catalogue import ACTIVITIES, NEXUS_HANDLERS, PROGRAMS, WORKFLOWS
from tests.sdk.errors import describe_error
from tests.sdk.stage import NAMESPACE, Stage, execution, make_worker

PROGRAMS_AT_ONCE = 8
PROGRAM_S_MAX = 30.0
# Number of programs that may take longer than HUNG_S; after that the server counts as hung and the rest is skipped.
HUNG_MAX = 12
HUNG_S = 18.0
VISIBILITY_S_MAX = 4.0
TASK_THREADS = 40
RUNS_MAX = 60
QUEUE = "side-by-side"
TIMES_OUT = ("task_times_out",)
# These programs wait for a long backoff, so they start first and the others run meanwhile.
SLOW = ("task_fails_thrice", "timers_one_after_another")


async def connect(address: str) -> Client:
    """Connect; retries, because the server responds only a while after its start."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            client = await Client.connect(address, identity="the-client")
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
        except (RuntimeError, RPCError):
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.2)
        else:
            return client


async def observe(stage: Stage) -> dict[str, Any]:
    """The program's outcome, and all that the server returns about its runs afterwards."""
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(PROGRAM_S_MAX):
            outcome = await stage.outcome(PROGRAMS[stage.name.partition("~")[0]](stage))
    except TimeoutError:
        outcome = f"not done after {PROGRAM_S_MAX:.0f} s"
    seen = {"outcome": outcome, "notes": stage.notes, "program_s": round(time.monotonic() - began_s, 2)}
    try:
        async with asyncio.timeout(PROGRAM_S_MAX):
            runs = await all_runs(stage)
            seen |= {"runs": runs, "visibility": await visibility(stage, runs)}
    except Exception as error:  # noqa: BLE001 - a server that cannot tell is different, not broken
        seen["unreadable"] = describe_error(error)
    return seen | {"seen_s": round(time.monotonic() - began_s, 2)}


async def observe_again_if_lost(client: Client, name: str, tag: str, times: int) -> dict[str, Any]:
    """As `observe`; runs a program that lost a workflow task again, at most `times` times."""
    found = await observe(Stage(client, name=f"{name}{tag}", queue=f"{QUEUE}{tag}"))
    for number in range(times):
        if not lost_a_task(name, found):
            break
        again = f"~again{number}"
        found = await observe(Stage(client, name=f"{name}{tag}{again}", queue=f"{QUEUE}{tag}"))
        found = without_suffix(found, again)
    return found


def without_suffix(found: dict[str, Any], suffix: str) -> dict[str, Any]:
    """Remove the suffix of a repetition, so that the names equal those of the other server."""
    text = json.dumps(found).replace(suffix, "")
    # Names of deployments have "-" instead of "~".
    plain: dict[str, Any] = json.loads(text.replace(suffix.replace("~", "-"), ""))
    return plain


def lost_a_task(name: str, found: dict[str, Any]) -> bool:
    """Whether a workflow task that was started never reached a worker."""
    events = [event for run in found.get("runs", []) for event in run["events"]]
    lost = any(
        event.get("workflowTaskTimedOutEventAttributes", {}).get("timeoutType") == "TIMEOUT_TYPE_START_TO_CLOSE"
        for event in events
    )
    return lost and name not in TIMES_OUT


async def all_runs(stage: Stage) -> list[dict[str, Any]]:
    """The runs that the program started, with their child workflows and next runs."""
    waiting = list(stage.runs)
    runs: list[dict[str, Any]] = []
    known = set(waiting)
    while waiting and len(runs) < RUNS_MAX:
        workflow_id, run_id = waiting.pop(0)
        history = await whole_history(stage, workflow_id, run_id)
        description = await stage.describe(workflow_id, run_id)
        runs.append(
            {
                "workflow_id": workflow_id,
                "run_id": run_id,
                "events": [MessageToDict(event) for event in history.events],
                "description": MessageToDict(description),
                "status": WorkflowExecutionStatus.Name(description.workflow_execution_info.status),
            }
        )
        for event in history.events:
            for found in following(workflow_id, event):
                if found not in known:
                    known.add(found)
                    waiting.append(found)
    return runs


def following(workflow_id: str, event: HistoryEvent) -> list[tuple[str, str]]:
    which = event.WhichOneof("attributes")
    attributes = getattr(event, which) if which else None
    found = []
    if next_run := getattr(attributes, "new_execution_run_id", ""):
        found.append((workflow_id, next_run))
    if which == "child_workflow_execution_started_event_attributes":
        child = event.child_workflow_execution_started_event_attributes.workflow_execution
        found.append((child.workflow_id, child.run_id))
    return found


async def whole_history(stage: Stage, workflow_id: str, run_id: str) -> History:
    history, token = History(), b""
    while True:
        answer = await stage.service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=NAMESPACE, execution=execution(workflow_id, run_id), next_page_token=token
            )
        )
        history.MergeFrom(answer.history)
        token = answer.next_page_token
        if not token:
            return history


async def visibility(stage: Stage, runs: list[dict[str, Any]]) -> dict[str, int]:
    """The number of runs by status. The reference server's visibility lags a little behind the runs."""
    expected = Counter(run["status"].removeprefix("WORKFLOW_EXECUTION_STATUS_").lower() for run in runs)
    deadline_s = time.monotonic() + VISIBILITY_S_MAX
    while True:
        answer = await stage.client.count_workflows(f"WorkflowId STARTS_WITH '{stage.name}/' GROUP BY ExecutionStatus")
        counts = {str(group.group_values[0]).lower(): group.count for group in answer.groups}
        if {status.replace("_", ""): count for status, count in expected.items()} == counts:
            return counts
        if time.monotonic() > deadline_s:
            return counts
        await asyncio.sleep(0.1)


def write(folder: Path, name: str, seen: dict[str, Any]) -> None:
    """Write the file atomically: readers see all of it or nothing."""
    part = folder / f"{name}.part"
    part.write_text(json.dumps(seen, sort_keys=True))
    part.rename(folder / f"{name}.json")


async def observe_all(address: str, folder: Path, names: list[str], tag: str, lost_tasks_max: int) -> None:
    client = await connect(address)
    places = asyncio.Semaphore(PROGRAMS_AT_ONCE)
    hung: list[str] = []

    async def one(name: str) -> None:
        async with places:
            if len(hung) >= HUNG_MAX:
                write(folder, name, {"outcome": f"not run, since others hang: {hung}"})
                return
            found = await observe_again_if_lost(client, name, tag, lost_tasks_max)
            if found["program_s"] >= HUNG_S and name not in SLOW:
                hung.append(name)
            write(folder, name, found)

    with ThreadPoolExecutor(TASK_THREADS) as threads:
        async with make_worker(
            client, f"{QUEUE}{tag}", WORKFLOWS, ACTIVITIES, workflow_task_executor=threads,
            max_concurrent_workflow_tasks=TASK_THREADS, nexus_service_handlers=NEXUS_HANDLERS,
        ):  # fmt: skip
            await asyncio.gather(*(one(name) for name in sorted(names, key=lambda name: name not in SLOW)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tag", default="", help="makes the workflow ids new on a server that has been used before")
    # Under load the reference server sometimes loses a workflow task on the way to the worker.
    parser.add_argument("--lost-tasks-max", type=int, default=0, help="how often a program is run again for that")
    parser.add_argument("names", nargs="+")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(observe_all(given.address, given.folder, given.names, given.tag, given.lost_tasks_max))
    # All results are written. The SDK's threads sometimes abort an orderly exit, so skip it.
    os._exit(0)


if __name__ == "__main__":
    main()
