"""The scaler's page: what it would do next, its changes, and a scaler at work in a browser."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from fairlead.console.views.scaler import next_step
from fairlead.core.partitions import Partition, PartitionConfig
from fairlead.core.scaling import ScalerSettings
from fairlead.matching.messages import AddRequest, ExplainResponse, NewTask, ScalerClocks
from fairlead.server.process import Server
from tests.console.conftest import open_page
from tests.console.filled import Filled, in_thread, load_queue, namespace_id_of, write_queue
from tests.console.web import running_console

SETTINGS = ScalerSettings(upscale_rps=10.0, upscale_sustained_s=60.0, downscale_sustained_s=120.0, interval_s=15.0)
# "busy" scales up almost at once, "patient" after an hour, "off" not at all: the load is far above all thresholds.
RULES = """
matching.enableAdaptiveScaler:
- value: true
- {value: false, constraints: {taskQueueName: "off"}}
matching.partitionUpscaleRPS: [{value: 1}]
matching.partitionUpscaleSustainedDuration:
- value: 1h
- {value: 0s, constraints: {taskQueueName: busy}}
matching.adaptiveScalerUpdateInterval: [{value: 500ms}]
matching.taskListMaximumWritePartitions: [{value: 4}]
"""


def explained(*, enabled: bool = True, write: int = 1, waits_for: str = "") -> ExplainResponse:
    clocks = ScalerClocks(ticked_s=100.0, thresholds_qps=(10.0, 0.0), above_since_s=70.0)
    config = PartitionConfig(1, write, write)
    return ExplainResponse(enabled, config, None, [], {}, waits_for=waits_for, clocks=clocks)


def test_the_next_change_says_when_it_comes_if_the_load_stays() -> None:
    found = next_step(101.0, explained(), {0: 35.0}, SETTINGS)
    assert found.sentence == "If the load stays, it raises the write partitions from 1 to 4 in 29 s."
    assert (found.at_s, found.write, found.load) == (130.0, 4, 35.0)


def test_a_load_between_the_thresholds_changes_nothing() -> None:
    found = next_step(101.0, explained(), {0: 5.0}, SETTINGS)
    assert found.sentence == "If the load stays, it changes nothing: write stays at 1."
    assert found.at_s is None


def test_a_scaler_that_is_off_shows_what_it_would_do() -> None:
    found = next_step(101.0, explained(enabled=False), {0: 35.0}, SETTINGS)
    assert found.sentence == "If it were on and the load stayed, it would raise the write partitions from 1 to 4 in 1m."
    found = next_step(101.0, explained(enabled=False, write=4), dict.fromkeys(range(4), 0.5), SETTINGS)
    assert "it would lower the write partitions from 4 to 1 in 2m" in found.sentence
    found = next_step(101.0, explained(enabled=False), {0: 5.0}, SETTINGS)
    assert found.sentence == "If it were on and the load stayed, it would change nothing: write stays at 1."


def test_a_scaler_that_waits_does_nothing() -> None:
    found = next_step(101.0, explained(waits_for="the settings are the source"), {0: 35.0}, SETTINGS)
    assert found.at_s is None
    assert "no longer waits" in found.sentence


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """A server on which three task queues get tasks all the time."""
    file = tmp_path_factory.mktemp("scaler") / "dynamic.yaml"
    file.write_text(RULES)
    with in_thread(lambda: loaded_console(file)) as found:
        yield found


@asynccontextmanager
async def loaded_console(file: Path) -> AsyncIterator[tuple[Server, str]]:
    async with running_console(dynamic_file=file) as (server, _):
        namespace_id = await namespace_id_of(server)
        adding = [asyncio.create_task(add_forever(server, namespace_id, name)) for name in ("busy", "patient", "off")]
        yield server, namespace_id
        for task in adding:
            task.cancel()


async def add_forever(server: Server, namespace_id: str, name: str) -> None:
    """Add about twenty tasks a second."""
    assert server._host is not None
    queue = await write_queue(server, namespace_id, name, [])
    await load_queue(server, queue)
    while True:
        task = NewTask(3, "", 1.0, b"x", time.time())
        await server._host.matching.add(AddRequest(Partition(queue, 0), task))
        await asyncio.sleep(0.05)


def test_a_scaler_at_work_shows_its_load_its_changes_and_the_next_one(browser: Browser, scaling: Filled) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="UTC", locale="en-US")
    seen = open_page(context, scaling.console)
    page = seen.page
    seen.goto("scaler?type=activity&name=busy")
    first = page.locator("#changes tbody tr").last
    expect(first).to_contain_text("upscale")
    expect(first).to_contain_text("1 / 1")
    expect(first).to_contain_text("are above 1.0")
    expect(page.locator("#changes")).to_contain_text("earlier changes are not kept")
    expect(page.locator("#now")).to_contain_text("4 / 4")
    expect(page.locator("#now")).to_contain_text("If the load stays, it changes nothing: write stays at 4.")
    seen.shoot("scaler-busy")
    seen.goto("scaler?type=activity&name=patient")
    expect(page.locator("#now")).to_contain_text("it raises the write partitions from 1 to 4 in 59m")
    seen.shoot("scaler-patient")
    seen.goto("scaler?type=activity&name=off")
    expect(page.locator("#now")).to_contain_text("The scaler is off for this task queue")
    expect(page.locator("#now")).to_contain_text(
        "If it were on and the load stayed, it would raise the write partitions"
    )
    seen.shoot("scaler-off")
    context.close()
    assert not seen.faults
