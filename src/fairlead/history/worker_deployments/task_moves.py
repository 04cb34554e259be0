"""Moves pending tasks to the queues of another version when the routing of a deployment has changed."""

import asyncio
from collections.abc import Callable

from fairlead.api.times import SECOND_NS
from fairlead.api.worker_deployments.registry import REFRESH_S, Deployments
from fairlead.api.worker_deployments.routing import Mark, encode_mark, list_of
from fairlead.api.worker_deployments.state import Deployment
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.client import MatchingClient
from fairlead.telemetry import get_log

# Seconds until every host has the new routing. After that, no task is added to a queue of the old routing.
SETTLED_S = 3 * REFRESH_S

_log = get_log("deployments")


class Mover:
    """Makes matching review its task queues after a routing change: at once, and when all hosts know the routing.

    The deployment stores the pending move until the last review is done; any host that sees it starts the review. A
    repeated review has no effect.
    """

    def __init__(self, deployments: Deployments, matching: MatchingClient, *, clock_ns: Callable[[], int]) -> None:
        self._deployments = deployments
        self._matching = matching
        self._clock_ns = clock_ns
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        # By deployment: the time of the change for which the first review was started.
        self._begun: dict[tuple[str, str], int] = {}
        deployments.on_moved = self.begin

    def begin(self, deployment: Deployment) -> None:
        """Start the review of a deployment, if one is due."""
        key = deployment.namespace_id, deployment.name
        is_settled = self._clock_ns() - deployment.moved_ns >= SETTLED_S * SECOND_NS
        if key in self._running or (not is_settled and self._begun.get(key) == deployment.moved_ns):
            return
        self._begun[key] = deployment.moved_ns
        task = asyncio.get_running_loop().create_task(self._move(deployment, is_settled=is_settled))
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))

    async def close(self) -> None:
        """Stop the reviews of this host; other hosts continue."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _move(self, deployment: Deployment, *, is_settled: bool) -> None:
        try:
            for name, task_type, build_id in deployment.moved:
                version = deployment.version(build_id)
                task_queue = TaskQueueId(deployment.namespace_id, name, TaskType(task_type))
                mark = encode_mark(Mark(name, task_type, version))
                await self._matching.review(list_of(task_queue, version), mark)
            if is_settled:
                await self._deployments.change(
                    deployment.namespace_id, deployment.name, lambda present: _settled(present, deployment.moved_ns)
                )
                self._begun.pop((deployment.namespace_id, deployment.name), None)
        except FairleadError as failure:
            # The next refresh tries again.
            self._begun.pop((deployment.namespace_id, deployment.name), None)
            _log.warning("tasks not moved to another version", deployment=deployment.name, reason=str(failure))


def _settled(present: Deployment | None, moved_ns: int) -> tuple[Deployment | None, None]:
    if present is not None and present.moved_ns == moved_ns:
        present.moved = []
    return present, None
