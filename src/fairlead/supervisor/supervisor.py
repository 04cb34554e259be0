"""Starts, restarts, drains and stops the processes of one machine."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fairlead.core.errors import FairleadError, RetryLater
from fairlead.settings.static.config import Role, StaticConfig
from fairlead.settings.static.tls import TlsConfig
from fairlead.supervisor.acceptor import Acceptor, Taker
from fairlead.supervisor.host_process import HostProcess, reason_of_end
from fairlead.supervisor.merged_metrics import MergedEndpoint
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.rpc.tls import TlsProvider

# Seconds between the end of a process and its restart: doubled with each consecutive end, up to the maximum.
RESTART_FIRST_S = 0.5
RESTART_S_MAX = 30.0
# Seconds after which a running process counts as healthy: if it ends later, the backoff restarts at its minimum.
HEALTHY_S = 60.0
# Seconds beyond the configured stop times after which a process is killed.
STOP_MARGIN_S = 10.0
# Seconds between comparisons of the processes' numbers of connections.
BALANCE_INTERVAL_S = 1.0

_log = get_log("supervisor")


class ProcessFailed(RetryLater):
    """A process ended before all processes were ready for the first time."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Supervisor:
    """N hosts of the ring as processes, with one port for SDKs and one metrics endpoint."""

    def __init__(
        self,
        config: StaticConfig,
        processes: int,
        arguments: Sequence[str],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`arguments` are those of each process; `check` raises if they are wrong, before processes are restarted."""
        self._config = config
        self._arguments = arguments
        self._check = check
        self._numbers = range(processes)
        self._processes: dict[int, HostProcess] = {}
        self._restarts = dict.fromkeys(self._numbers, 0)
        self._keepers: list[asyncio.Task[None]] = []
        self._acceptor: Acceptor | None = None
        self._endpoint: MergedEndpoint | None = None
        self._tls: TlsProvider | None = None
        self._was_ready = False
        self._is_stopping = False
        self._rolling: asyncio.Task[None] | None = None
        self._has_changed = asyncio.Condition()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def address(self) -> str | None:
        """Address for SDKs; None without the frontend role."""
        return None if self._acceptor is None else self._acceptor.address

    @property
    def metrics_address(self) -> str | None:
        """Address of the metrics endpoint; None if it is not configured."""
        return None if self._endpoint is None else self._endpoint.address

    @property
    def hosts(self) -> list[str]:
        """Names of the ready processes in the ring."""
        return [process.ready.host for process in self._processes.values() if process.ready is not None]

    async def start(self) -> None:
        """Start all processes and wait until they serve; raise `ProcessFailed` if one ends before."""
        config = self._config
        if Role.FRONTEND in config.roles:
            self._acceptor = Acceptor(config.frontend_listen, self._takers, key=config.spelled("frontend.listen"))
        if config.metrics_listen is not None:
            self._tls = _metrics_tls(config)
            self._endpoint = MergedEndpoint(
                str(config.metrics_listen),
                sources=self._metrics_sources,
                restarts=self._restarts,
                key=config.spelled("metrics.listen"),
                tls=None if self._tls is None or self._tls.metrics is None else self._tls.metrics.context,
            )
            await self._endpoint.start()
            if self._tls is not None:
                self._tls.start()
        self._keepers = [asyncio.create_task(self._keep(number)) for number in self._numbers]
        all_ready = asyncio.create_task(self._until(lambda: len(self._serving()) == len(self._numbers)))
        await asyncio.wait([all_ready, self._failure], return_when=asyncio.FIRST_COMPLETED)
        all_ready.cancel()
        if self._failure.done():
            await self.kill()
            self._failure.result()
        self._was_ready = True
        self._keepers.append(asyncio.create_task(self._balance()))

    def restart(self) -> None:
        """Restart the processes one by one, each when the previous one serves again."""
        if self._rolling is not None and not self._rolling.done():
            _log.warning("rolling restart is already running")
            return
        try:
            self._check()
        except FairleadError as wrong:
            _log.error("not restarted: the configuration is wrong, keeping the running processes", error=str(wrong))
            return
        self._rolling = asyncio.create_task(self._roll())

    async def stop(self) -> None:
        """Drain and stop the processes one by one; SDKs move to those that still serve."""
        self._is_stopping = True
        if self._rolling is not None:
            self._rolling.cancel()
        for number in self._numbers:
            process = self._processes.get(number)
            if process is None:
                continue
            if self._acceptor is not None and all(one is process for one in self._serving()):
                self._acceptor.close()
            _log.info("stopping process", process=number, pid=process.pid)
            await process.stop(self._stop_s_max)
        await self.kill()

    def kill_processes(self) -> None:
        """End the processes at once; acknowledged writes are in the database."""
        self._is_stopping = True
        for process in self._processes.values():
            process.kill()

    async def kill(self) -> None:
        """End everything at once."""
        self.kill_processes()
        if self._acceptor is not None:
            self._acceptor.close()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for process in self._processes.values():
            await process.wait()
        if self._endpoint is not None:
            await self._endpoint.stop()
        if self._tls is not None:
            await self._tls.close()

    @property
    def _stop_s_max(self) -> float:
        return self._config.grace_s + self._config.hand_over_s + STOP_MARGIN_S

    def _serving(self) -> list[HostProcess]:
        return [process for process in self._processes.values() if process.is_serving]

    def _takers(self) -> list[Taker]:
        return [*self._serving()]

    def _metrics_sources(self) -> dict[int, str | None]:
        """Address of the metrics of each process; None for one that does not serve."""
        found: dict[int, str | None] = dict.fromkeys(self._numbers)
        for process in self._processes.values():
            if process.ready is not None:
                found[process.number] = process.ready.metrics
        return found

    async def _keep(self, number: int) -> None:
        """Run process `number`, and start it again whenever it ends."""
        wait_s = RESTART_FIRST_S
        while not self._is_over():
            process = self._processes[number] = await HostProcess.start(number, self._arguments)
            await self._changed()
            if await process.until_ready():
                _log.info("process serves", process=number, pid=process.pid, after_s=round(process.age_s, 1))
                await self._changed()
            code = await process.wait()
            await self._changed()
            if self._is_over():
                return
            if process.is_draining:
                # A rolling restart ended it.
                continue
            if process.age_s >= HEALTHY_S:
                wait_s = RESTART_FIRST_S
            self._report_end(process, code, wait_s)
            if not self._was_ready:
                return
            self._restarts[number] += 1
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RESTART_S_MAX)

    def _is_over(self) -> bool:
        return self._is_stopping

    def _report_end(self, process: HostProcess, code: int, wait_s: float) -> None:
        why = reason_of_end(code)
        if self._was_ready:
            _log.error(
                "process died, starting it again",
                process=process.number,
                pid=process.pid,
                reason=why,
                lived_s=round(process.age_s, 1),
                again_in_s=wait_s,
            )
        elif not self._failure.done():
            message = f"process {process.number} ended before it was ready ({why}): see its messages above"
            self._failure.set_exception(ProcessFailed(message, max(code, 1)))

    async def _roll(self) -> None:
        _log.info("rolling restart", processes=len(self._numbers))
        for number in self._numbers:
            # The other processes take over meanwhile, so all of them must serve.
            await self._until(lambda: len(self._serving()) == len(self._numbers))
            process = self._processes[number]
            _log.info("restarting process", process=number, pid=process.pid)
            await process.stop(self._stop_s_max)
            await self._until(partial(self._is_replaced, process))
            if not await self._processes[number].until_ready():
                _log.error("rolling restart stopped: the process did not come back", process=number)
                return
        _log.info("rolling restart done", processes=len(self._numbers))

    def _is_replaced(self, process: HostProcess) -> bool:
        return self._processes[process.number] is not process

    async def _balance(self) -> None:
        """Move connections from the process with the most to the process with the fewest, a few at a time.

        Without this, a new process would have no connections, since long-lived connections stay where they are.
        """
        while True:
            await asyncio.sleep(BALANCE_INTERVAL_S)
            serving = sorted(self._serving(), key=lambda process: process.connections)
            if len(serving) > 1 and not serving[-1].is_releasing:
                surplus = serving[-1].connections - serving[0].connections
                if surplus > 1:
                    serving[-1].release(surplus // 2)

    async def _changed(self) -> None:
        if self._acceptor is not None:
            self._acceptor.resume()
        async with self._has_changed:
            self._has_changed.notify_all()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with self._has_changed:
            await self._has_changed.wait_for(is_so)


def _metrics_tls(config: StaticConfig) -> "TlsProvider | None":
    """The certificate of the metrics endpoint; None without one."""
    if not config.metrics_tls.is_on:
        return None
    # Imported late: a supervisor without TLS doesn't need it.
    from fairlead.rpc.tls import TlsProvider  # noqa: PLC0415

    refresh_s = config.security.tls.refresh_s
    return TlsProvider(TlsConfig(refresh_s=refresh_s), metrics=config.metrics_tls)
