"""Signals and cancel requests from one workflow to another."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from tests.history.reference_programs import External, Hello
from tests.sdk.programs.cancellation import CleansUpSlowly
from tests.sdk.programs.starts import Waits
from tests.sdk.stage import Stage, program


@workflow.defn
class SignalsAnother:
    @workflow.run
    async def run(self, other: str, words: list[str]) -> str:
        handle = workflow.get_external_workflow_handle(other)
        for word in words:
            try:
                await handle.signal("say", word)
            except ApplicationError as error:
                return f"{error.type}: {error}"
        return "sent"


@program
async def external_signal(stage: Stage) -> None:
    other = await stage.start(Waits.run, suffix="other")
    await stage.idle(other)
    stage.note("sender", await stage.run(SignalsAnother.run, other.id, ["from afar"]))
    await stage.idle(other)
    await other.signal("say", "end")
    stage.note("other", await other.result())


@program
async def external_signal_that_ends_it(stage: Stage) -> None:
    other = await stage.start(Waits.run, suffix="other")
    await stage.idle(other)
    stage.note("sender", await stage.run(SignalsAnother.run, other.id, ["end"]))
    stage.note("other", await other.result())


@program
async def external_signal_to_a_closed_one(stage: Stage) -> Any:
    other = await stage.start(Hello.run, "x", suffix="other")
    await other.result()
    return await stage.run(SignalsAnother.run, other.id, ["too late"])


@program
async def external_signal_missing(stage: Stage) -> Any:
    return await stage.run(External.run, "signal", stage.id("missing"))


@program
async def external_cancel(stage: Stage) -> None:
    other = await stage.start(CleansUpSlowly.run, suffix="other")
    await stage.idle(other)
    stage.note("sender", await stage.run(External.run, "cancel", other.id))
    await stage.idle(other)
    stage.note("sender again", await stage.run(External.run, "cancel", other.id, suffix="again"))
    await other.signal("end")
    stage.note("other", await stage.outcome(other.result()))


@program
async def external_cancel_missing(stage: Stage) -> Any:
    return await stage.run(External.run, "cancel", stage.id("missing"))


@program
async def external_cancel_of_a_closed_one(stage: Stage) -> Any:
    other = await stage.start(Hello.run, "x", suffix="other")
    await other.result()
    return await stage.run(External.run, "cancel", other.id)
