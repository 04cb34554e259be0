"""The scenario `fluctuating_adaptive` through the real service, on virtual time, with a delay for each call."""

import asyncio
import random
from dataclasses import replace

from fairlead.bench.generator import LoadGenerator
from fairlead.bench.scenarios import SCENARIOS, Scenario
from fairlead.bench.tally import Tally
from fairlead.matching.client import MatchingClient
from fairlead.rpc.hosts.caller import Caller, Method, Request, Response
from tests.matching.hosts import ORDERS, hosts
from tests.virtual_time import on_virtual_time

CALL_S = 0.001


class SlowCaller:
    """Delays every call, as a network between hosts does."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        await asyncio.sleep(CALL_S)
        return await self._caller.call(host, method, request, timeout_s=timeout_s)


async def run(scenario: Scenario) -> Tally:
    names = [f"host-{number}" for number in range(scenario.hosts)]
    loop = asyncio.get_running_loop()
    async with hosts(*names, overrides=scenario.settings()) as there:
        clients = [
            MatchingClient(
                SlowCaller(there.network.caller()),
                host.ring,
                settings=there.settings,
                clock=loop.time,
                random=random.Random(name).random,
            )
            for name, host in there.items()
        ]
        generator = LoadGenerator(
            clients, scenario.load, task_queue=ORDERS, run_id=1, random=random.Random(1).random, clock=loop.time
        )
        return await generator.run()


@on_virtual_time
async def test_the_scaler_does_not_overshoot_oscillate_or_delay_tasks() -> None:
    """FL-30: no task waits more than 10 % longer than with a fixed number of partitions."""
    scenario = SCENARIOS["fluctuating_adaptive"]
    ideal = scenario.ideal_write_partitions
    assert ideal == 3
    adaptive = await run(scenario)
    fixed = await run(replace(scenario, scaler=None, read_partitions=ideal, write_partitions=ideal))
    assert (adaptive.received, adaptive.outstanding, fixed.received, fixed.outstanding) == (8_000, 0, 8_000, 0)

    writes = [seen.config.write for seen in adaptive.configs]
    top = writes.index(max(writes))
    assert max(writes) == ideal
    assert writes[: top + 1] == sorted(writes[: top + 1])
    assert writes[top:] == sorted(writes[top:], reverse=True)
    assert all(seen.config.read <= ideal for seen in adaptive.configs)

    for percentile in (50.0, 99.0):
        waits = adaptive.task_waits.at_s(percentile), fixed.task_waits.at_s(percentile)
        assert waits[0] is not None
        assert waits[1] is not None
        assert waits[0] <= 1.1 * waits[1]
    assert adaptive.task_waits.max_s <= 1.1 * fixed.task_waits.max_s
