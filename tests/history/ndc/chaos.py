"""Random workflows in several clusters, with failovers, lost memory and reordered batches; and the final checks."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from temporalio.api.command.v1 import Command
from temporalio.api.history.v1 import History
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueResponse,
    RecordActivityTaskHeartbeatRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
    RespondWorkflowTaskFailedRequest,
)

from fairlead.core.errors import FairleadError
from fairlead.history.state.run import ClosedBy
from fairlead.storage.history import RunKey
from tests.history.ndc.several import NAMES, VERSIONS, Cluster, Several, check_one_open, check_same
from tests.history.shard_world import command, complete, schedule_activity, start_timer

POLL_S = 0.05


class Chaos:
    """One random test run of several clusters."""

    def __init__(self, seed: int, *, names: tuple[str, ...] = NAMES, workflows: int = 2) -> None:
        self.chance = random.Random(seed)
        self.several = Several(names)
        self.names = names
        self.workflow_ids = [f"flow-{place}" for place in range(workflows)]
        self.version = 1
        # By workflow id: the names of the signals that were acknowledged.
        self.acknowledged: dict[str, list[str]] = {workflow_id: [] for workflow_id in self.workflow_ids}
        self.unknown: set[str] = set()
        self._held: list[tuple[str, PollWorkflowTaskQueueResponse]] = []
        self._held_activities: list[tuple[str, bytes, str]] = []
        self._count = 0

    async def run(self, steps: int) -> None:
        """Take `steps` random actions, wait until all clusters have converged, and check them."""
        actions = [
            (6, self._signal),
            (3, self._begin),
            (6, self._take_task),
            (6, self._answer_task),
            (4, self._activity),
            (3, self._fail_over),
            (8, self._bring),
            (1, self._restart),
            (1, self._wait),
        ]
        weights = [weight for weight, _ in actions]
        async with self.several:
            for _ in range(steps):
                ((_, action),) = self.chance.choices(actions, weights)
                with suppress(FairleadError):
                    await action()
                for cluster in self.several.clusters.values():
                    for workflow_id in self.workflow_ids:
                        check_one_open(cluster, workflow_id)
            await self.rest()

    async def rest(self) -> None:
        """Bring the latest failover version and all events to all clusters, and compare them."""
        await self.several.fail_over(self.version)
        await self.several.converge(self.chance)
        # Tasks of workers that never respond time out, and the events buffered behind them are written.
        for _ in range(3):
            await asyncio.sleep(40)
            await self.several.converge(self.chance)
        used = [each for each in self.workflow_ids if self.several[self.names[0]].world.runs_of(each)]
        await check_same(self.several, used)
        for workflow_id in used:
            await self._check_signals(self.several[self.names[0]], workflow_id)

    async def _check_signals(self, cluster: Cluster, workflow_id: str) -> None:
        states = [cluster.state(workflow_id, key.run_id) for key in cluster.world.runs_of(workflow_id)]
        assert not any(state.is_zombie for state in states), workflow_id
        by_id = {state.identity.run_id: state for state in states}
        somewhere: Counter[str] = Counter()
        for state in states:
            if state.closed_by != ClosedBy.NEWER_RUN:
                somewhere += await signals_on(cluster, RunKey(*_key(state)))
        for name in self.acknowledged[workflow_id]:
            assert somewhere[name], (workflow_id, name, somewhere)
        # The chain of runs that led to the current one; a reset run shares the events of its base, or has reapplied
        # them.
        signals: Counter[str] = Counter()
        current = cluster.current(workflow_id)
        step = by_id.get(current.run_id) if current is not None else None
        while step is not None:
            signals += await signals_on(cluster, RunKey(*_key(step)))
            before = by_id.get(step.started.continued_run_id)
            # A branch of the previous run that has lost since may have started this run.
            follows = before is not None and before.new_run_id == step.identity.run_id
            step = before if follows else None
        assert not [name for name, count in signals.items() if count > 1], signals

    # Actions

    def _some(self) -> Cluster:
        return self.several[self.chance.choice(self.names)]

    async def _begin(self) -> None:
        workflow_id = self.chance.choice(self.workflow_ids)
        self._count += 1
        await self._some().host.begin(workflow_id, f"begin-{self._count}")

    async def _signal(self) -> None:
        workflow_id = self.chance.choice(self.workflow_ids)
        self._count += 1
        name = f"signal-{self._count}"
        request_id = f"request-{self._count}" if self.chance.random() < 0.7 else ""
        await self._some().host.signal(workflow_id, name, request_id)
        self.acknowledged[workflow_id].append(name)

    async def _take_task(self) -> None:
        cluster = self._some()
        task = await cluster.host.poll(timeout_s=POLL_S)
        if task is not None:
            self._held.append((cluster.name, task))

    async def _answer_task(self) -> None:
        if not self._held:
            return await self._take_task()
        name, task = self._held.pop(self.chance.randrange(len(self._held)))
        host = self.several[name].host
        if self.chance.random() < 0.1:
            request = RespondWorkflowTaskFailedRequest(task_token=task.task_token)
            await host.call("RespondWorkflowTaskFailed", task.workflow_execution.workflow_id, request)
            return None
        await host.respond(task, self._commands(task))
        return None

    def _commands(self, task: PollWorkflowTaskQueueResponse) -> list[Command]:
        self._count += 1
        commands = []
        if self.chance.random() < 0.4:
            commands.append(schedule_activity(f"activity-{self._count}"))
        if self.chance.random() < 0.3:
            commands.append(start_timer(self.chance.choice((1, 3600)), f"timer-{self._count}"))
        if self.chance.random() < 0.1:
            commands.append(complete())
        elif self.chance.random() < 0.15:
            commands.append(_continue_as_new(task))
        return commands

    async def _activity(self) -> None:
        cluster = self._some()
        if self._held_activities and self.chance.random() < 0.6:
            name, token, workflow_id = self._held_activities.pop()
            host = self.several[name].host
            request: Any = RespondActivityTaskCompletedRequest(task_token=token)
            kind = self.chance.choice(("Complete", "Fail", "Heartbeat"))
            if kind == "Fail":
                request = RespondActivityTaskFailedRequest(task_token=token)
                await host.call("RespondActivityTaskFailed", workflow_id, request)
            elif kind == "Heartbeat":
                request = RecordActivityTaskHeartbeatRequest(task_token=token)
                await host.call("RecordActivityTaskHeartbeat", workflow_id, request)
                self._held_activities.append((name, token, workflow_id))
            else:
                await host.call("RespondActivityTaskCompleted", workflow_id, request)
            return
        task = await cluster.host.poll_activity(timeout_s=POLL_S)
        if task is not None:
            self._held_activities.append((cluster.name, task.task_token, task.workflow_execution.workflow_id))

    async def _fail_over(self) -> None:
        to = self.chance.choice(self.names)
        self.version = VERSIONS.next_version(to=to, current=self.version)
        # Some clusters learn of this failover only with the next one.
        heard = [name for name in self.names if name == to or self.chance.random() < 0.5]
        await self.several.fail_over(self.version, *heard)

    async def _bring(self) -> None:
        source = self.chance.choice(self.names)
        target = self.chance.choice([name for name in self.names if name != source])
        await self.several.bring(source, target)

    async def _restart(self) -> None:
        await self._some().restart()

    async def _wait(self) -> None:
        await asyncio.sleep(self.chance.choice((0.5, 3.0, 15.0)))


async def signals_on(cluster: Cluster, key: RunKey) -> Counter[str]:
    """The names of the signals on a run's current branch."""
    state = cluster.state(key.workflow_id, key.run_id)
    names: Counter[str] = Counter()
    first = 1
    while first < state.next_event_id:
        page = await cluster.world.store.read_branch(
            state.identity.tree_id, state.identity.branch_id, first, state.next_event_id, limit_bytes=1 << 20
        )
        for batch in page:
            for event in History.FromString(batch.payload).events:
                if event.event_id >= first and event.HasField("workflow_execution_signaled_event_attributes"):
                    names[event.workflow_execution_signaled_event_attributes.signal_name] += 1
            first = batch.last_event_id + 1
    return names


def _key(state: Any) -> tuple[str, str, str]:
    return state.identity.namespace_id, state.identity.workflow_id, state.identity.run_id


def _continue_as_new(task: PollWorkflowTaskQueueResponse) -> Command:
    made = command("CONTINUE_AS_NEW_WORKFLOW_EXECUTION")
    attributes = made.continue_as_new_workflow_execution_command_attributes
    attributes.workflow_type.name = task.workflow_type.name
    attributes.task_queue.name = "queue"
    return made
