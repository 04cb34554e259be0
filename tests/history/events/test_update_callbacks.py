"""Completion callbacks of updates: events register them, and they are called when the update has ended."""

from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message import Message as AnyMessage
from temporalio.api.common.v1 import Callback, Link
from temporalio.api.protocol.v1 import Message
from temporalio.api.update.v1 import Acceptance, Input, Meta, Outcome, Request, Response

from fairlead.history.events import terminate
from fairlead.history.events.write_updates import attach_to_update, is_attached
from fairlead.history.state.tasks import DeliverUpdateCallback
from tests.history.scenario import Scenario, command, payloads

LINK = Link(batch_job=Link.BatchJob(job_id="job"))


def callback(name: str) -> Callback:
    return Callback(nexus=Callback.Nexus(url="temporal://system", header={"name": name}), links=[LINK])


def request(name: str) -> Request:
    return Request(
        meta=Meta(update_id="u"),
        input=Input(name="add"),
        request_id=name,
        links=[LINK],
        completion_callbacks=[callback(name)],
    )


def message(number: str, content: AnyMessage) -> Message:
    body = Packed()
    body.Pack(content)
    return Message(id=number, protocol_instance_id="u", body=body)


def accepted() -> Scenario:
    run = Scenario()
    run.work(
        command("protocol_message", message_id="1"),
        messages=[message("1", Acceptance(accepted_request=request("first")))],
    )
    return run


def complete(run: Scenario) -> None:
    response = Response(meta=Meta(update_id="u"), outcome=Outcome(success=payloads("3")))
    run.answer(command("protocol_message", message_id="2"), messages=[message("2", response)])


def deliveries(run: Scenario) -> list[DeliverUpdateCallback]:
    return [task for task in run.tasks if isinstance(task, DeliverUpdateCallback)]


def test_the_end_of_an_update_is_reported_to_its_callback() -> None:
    run = accepted()
    assert list(run.history[4].links) == [LINK]
    assert (deliveries(run), run.state.updates["u"].request_id) == ([], "first")
    run.signal()
    run.start_task()
    complete(run)
    completed = run.state.updates["u"].completed_event_id
    assert deliveries(run) == [DeliverUpdateCallback(0, completed, "u", 0)]


def test_a_callback_attached_during_the_completing_workflow_task_is_called_too() -> None:
    run = accepted()
    run.signal()
    run.start_task()
    run.step(lambda transaction: attach_to_update(transaction, "u", request("second")))
    assert is_attached(run.state, "u", "second")
    complete(run)
    assert [task.number for task in deliveries(run)] == [0, 1]
    stored = [Callback.FromString(each.callback) for each in run.state.updates["u"].callbacks]
    assert stored == [callback("first"), callback("second")]
    assert is_attached(run.state, "u", "second")
    assert not is_attached(run.state, "u", "third")


def test_an_accepted_update_ends_with_its_run() -> None:
    run = accepted()
    run.step(lambda transaction: terminate(transaction, reason="enough", identity="me"))
    assert deliveries(run) == [DeliverUpdateCallback(0, run.state.close_event_id, "u", 0)]


def test_an_update_without_callbacks_leaves_nothing_to_report() -> None:
    run = Scenario()
    plain = Request(meta=Meta(update_id="u"), input=Input(name="add"))
    run.work(command("protocol_message", message_id="1"), messages=[message("1", Acceptance(accepted_request=plain))])
    run.signal()
    run.start_task()
    complete(run)
    assert deliveries(run) == []
