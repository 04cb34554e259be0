"""Tasks that waited for workers of a version are brought to those that are to have them, when that changes."""

import asyncio
from collections.abc import Callable

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskList, TaskType
from fairlead.history.deployments.registry import REFRESH_S, Deployments
from fairlead.history.deployments.routing import Mark, encode_mark, list_of
from fairlead.history.deployments.state import Deployment
from fairlead.matching.client import MatchingClient
from fairlead.telemetry import get_log

# By then every host knows of a change: what came into the wrong list until then is there, and nothing more comes.
SETTLED_S = 3 * REFRESH_S
_SECOND_NS = 1_000_000_000

_log = get_log("deployments")


class Mover:
    """Has task lists looked through after a change of the routing: at once, and again when all hosts know of it.

    That there is something to do is stored with the deployment until it is done for the last time: whichever host sees
    it does it. Any number of hosts may, and any number of times.
    """

    def __init__(self, deployments: Deployments, matching: MatchingClient, *, clock_ns: Callable[[], int]) -> None:
        self._deployments = deployments
        self._matching = matching
        self._clock_ns = clock_ns
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        # Which change was looked after before it was settled.
        self._begun: dict[tuple[str, str], int] = {}
        deployments.on_moved = self.begin

    def begin(self, deployment: Deployment) -> None:
        """See to a deployment, if there is something to do now."""
        key = deployment.namespace_id, deployment.name
        is_settled = self._clock_ns() - deployment.moved_ns >= SETTLED_S * _SECOND_NS
        if key in self._running or (not is_settled and self._begun.get(key) == deployment.moved_ns):
            return
        self._begun[key] = deployment.moved_ns
        task = asyncio.get_running_loop().create_task(self._move(deployment, is_settled=is_settled))
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))

    async def close(self) -> None:
        """Leave the rest to others."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _move(self, deployment: Deployment, *, is_settled: bool) -> None:
        try:
            for name, task_type, build_id in deployment.moved:
                version = deployment.version(build_id)
                task_list = TaskList(deployment.namespace_id, name, TaskType(task_type))
                mark = encode_mark(Mark(name, task_type, version))
                await self._matching.review(list_of(task_list, version), mark)
            if is_settled:
                await self._deployments.change(
                    deployment.namespace_id, deployment.name, lambda present: _settled(present, deployment.moved_ns)
                )
                self._begun.pop((deployment.namespace_id, deployment.name), None)
        except FairleadError as failure:
            # It is tried again at the next refresh.
            self._begun.pop((deployment.namespace_id, deployment.name), None)
            _log.warning("tasks not moved", deployment=deployment.name, reason=str(failure))


def _settled(present: Deployment | None, moved_ns: int) -> tuple[Deployment | None, None]:
    if present is not None and present.moved_ns == moved_ns:
        present.moved = []
    return present, None
