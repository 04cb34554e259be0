"""Temporal's own command line creates, lists, describes and stops batch jobs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.testing import FairleadServer

TEMPORAL = str(Path(sys.executable).with_name("temporal"))


class CommandLine:
    """The command line, for one server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, *arguments: str) -> Any:
        """Run a command and return its JSON output."""
        command = [TEMPORAL, *arguments, "--address", self._address, "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None

    def start(self, count: int) -> None:
        for number in range(count):
            self("workflow", "start", "--type", "T", "--task-queue", "nobody", "--workflow-id", f"w-{number}")

    def ended(self, job_id: str) -> Any:
        while True:
            job = self("batch", "describe", "--job-id", job_id)
            if job["state"] != "BATCH_OPERATION_STATE_RUNNING":
                return job


@pytest.fixture
def temporal() -> Iterator[CommandLine]:
    with FairleadServer.run_process() as server:
        yield CommandLine(server.address)


QUERY = ("--query", "WorkflowType='T'", "--yes", "--reason", "cleaning")


def test_workflows_that_a_query_finds_are_signaled_canceled_terminated_and_deleted(temporal: CommandLine) -> None:
    temporal.start(3)
    types = []
    for command in (["signal", "--name", "go"], ["cancel"], ["terminate"], ["delete"]):
        answer = temporal("workflow", *command, *QUERY)
        job = temporal.ended(answer["batchJobId"])
        assert job["state"] == "BATCH_OPERATION_STATE_COMPLETED"
        assert (job["totalOperationCount"], job["completeOperationCount"]) == ("3", "3")
        assert job["reason"] == "cleaning"
        types.append(job["operationType"].removeprefix("BATCH_OPERATION_TYPE_"))
    assert types == ["SIGNAL_WORKFLOW", "CANCEL_WORKFLOW", "TERMINATE_WORKFLOW", "DELETE_WORKFLOW"]
    assert temporal("workflow", "list") == []
    assert len(temporal("batch", "list")) == 4


def test_a_job_is_stopped(temporal: CommandLine) -> None:
    temporal.start(3)
    answer = temporal("workflow", "terminate", *QUERY, "--rps", "0.2")
    job_id = answer["batchJobId"]
    temporal("batch", "terminate", "--job-id", job_id, "--reason", "enough")
    assert temporal.ended(job_id)["state"] == "BATCH_OPERATION_STATE_FAILED"
