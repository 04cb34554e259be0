from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Memo, Payload, SearchAttributes
from temporalio.api.enums.v1 import WorkflowExecutionStatus

from fairlead.api.search.list_entries import info_of
from fairlead.api.search.names import INT, KEYWORD
from fairlead.api.times import SECOND_NS
from fairlead.history.events import terminate
from fairlead.history.shard.visibility_rows import row_of
from fairlead.history.state.run import Parent
from fairlead.storage.history import HistoryStore
from tests.api.search.world import CUSTOM, NAMESPACE_ID, ROWS, save
from tests.history.scenario import RUN_ID, Scenario, command

CUSTOM_HERE = {"Color": KEYWORD, "Size": INT}


def payload(data: bytes) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=data)


def scenario() -> Scenario:
    fields = {"Color": payload(b'"red"'), "Size": payload(b'"no number"'), "Removed": payload(b"1")}
    return Scenario(
        search_attributes=SearchAttributes(indexed_fields=fields),
        memo=Memo(fields={"note": payload(b'"hi"')}),
        workflow_start_delay=Duration(seconds=2),
    )


def test_the_row_of_an_open_run_has_no_close_fields() -> None:
    run = scenario()
    row = row_of(run.state, custom=CUSTOM_HERE)
    assert row[:3] == ("namespace-id", RUN_ID, "workflow")
    assert (row.workflow_type, row.task_queue, row.status) == ("Test", "queue", 1)
    assert row.start_time_ns == run.now_ns
    assert row.execution_time_ns == run.now_ns + 2 * SECOND_NS
    assert row[8:13] == (None, None, None, None, None)
    assert row.parent_workflow_id is row.parent_run_id is None
    assert (row.root_workflow_id, row.root_run_id) == ("workflow", RUN_ID)
    # The other two are left out: one has another type, and one is no longer an attribute.
    assert row.search_attributes == {"Color": "red"}
    assert Memo.FromString(row.memo).fields["note"].data == b'"hi"'


def test_the_row_of_a_closed_run_has_its_duration() -> None:
    run = Scenario()
    started_ns = run.now_ns
    run.work(command("complete_workflow_execution"))
    row = row_of(run.state, custom={})
    assert row.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED
    assert row.close_time_ns == run.now_ns
    assert row.execution_duration_ns == run.now_ns - started_ns > 0
    assert row.history_length == len(run.history) == 5
    assert row.history_size_bytes == sum(map(len, run.batches))


def test_a_run_closed_before_its_start_delay_has_a_negative_duration() -> None:
    run = scenario()
    run.step(lambda transaction: terminate(transaction, reason="", identity="me"))
    row = row_of(run.state, custom={})
    assert row.execution_duration_ns == -2 * SECOND_NS + run.now_ns - row.start_time_ns < 0
    assert info_of(row, {}).execution_duration.ToNanoseconds() == row.execution_duration_ns


def test_the_row_of_a_child_has_its_parent_and_root() -> None:
    run = Scenario()
    origin = run.state.started
    origin.parent = Parent("default", "namespace-id", "parent", "parent-run", 5, 0)
    origin.root_workflow_id, origin.root_run_id = "root", "root-run"
    row = row_of(run.state, custom={})
    assert row[13:17] == ("parent", "parent-run", "root", "root-run")
    info = info_of(row, {})
    assert (info.parent_execution.workflow_id, info.parent_execution.run_id) == ("parent", "parent-run")
    assert (info.root_execution.workflow_id, info.root_execution.run_id) == ("root", "root-run")


def test_a_list_entry_has_the_values_of_its_row() -> None:
    run = scenario()
    info = info_of(row_of(run.state, custom=CUSTOM_HERE), CUSTOM_HERE)
    assert (info.execution.workflow_id, info.execution.run_id, info.type.name) == ("workflow", RUN_ID, "Test")
    assert info.start_time.ToNanoseconds() == run.now_ns
    assert info.execution_time.ToNanoseconds() == run.now_ns + 2 * SECOND_NS
    assert not info.HasField("close_time")
    assert not info.HasField("execution_duration")
    assert not info.HasField("parent_execution")
    assert info.HasField("root_execution")
    assert info.memo.fields["note"].data == b'"hi"'
    assert dict(info.search_attributes.indexed_fields) == {
        "Color": Payload(metadata={"encoding": b"json/plain", "type": b"Keyword"}, data=b'"red"')
    }
    closed = info_of(ROWS[2], CUSTOM)
    assert closed.close_time.ToNanoseconds() == ROWS[2].close_time_ns
    assert closed.execution_duration.ToNanoseconds() == ROWS[2].execution_duration_ns
    assert (closed.history_length, closed.history_size_bytes, closed.state_transition_count) == (5, 405, 3)


async def test_rows_read_from_a_store_give_the_same_list_entries(store: HistoryStore) -> None:
    await save(store, *ROWS)
    found = await store.list_visibility(NAMESPACE_ID, limit=10)
    infos = {row.run_id: info_of(row, CUSTOM) for row in found}
    assert infos == {row.run_id: info_of(row, CUSTOM) for row in ROWS}
