import pytest
import temporalio.api.workflowservice.v1 as api
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import WorkerStatus
from temporalio.api.worker.v1 import WorkerHeartbeat

from fairlead.api.errors import ApiError
from fairlead.frontend.handlers.worker_registry import SILENT_S_MAX, WORKERS_MAX, WorkerRegistry
from fairlead.frontend.validation.worker_query import DEPTH_MAX
from tests.frontend.bad_requests import NAMESPACE, changed
from tests.frontend.setup import NAMESPACE_ID, Setup, set_up


def heartbeat(number: int, **fields: object) -> WorkerHeartbeat:
    worker = WorkerHeartbeat(
        worker_instance_key=f"key{number}",
        worker_identity=f"id{number}",
        task_queue="tq",
        sdk_name="temporal-python",
        sdk_version="1.35",
        status=WorkerStatus.WORKER_STATUS_RUNNING,
        start_time=Timestamp(seconds=1_700_000_000 + number),
        heartbeat_time=Timestamp(seconds=1_790_000_000),
    )
    worker.host_info.host_name = "host"
    worker.deployment_version.deployment_name = "dep"
    worker.deployment_version.build_id = "b1"
    return changed(worker, fields)


@pytest.fixture
async def setup() -> Setup:
    setup = await set_up()
    await record(setup, heartbeat(2, task_queue="other"), heartbeat(1), heartbeat(3, status=3), WorkerHeartbeat())
    return setup


async def record(setup: Setup, *heartbeats: WorkerHeartbeat) -> None:
    await setup.ask(api.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, worker_heartbeat=heartbeats))


async def listed(setup: Setup, query: str = "") -> list[str]:
    response = await setup.ask(api.ListWorkersRequest(namespace=NAMESPACE, query=query))
    assert isinstance(response, api.ListWorkersResponse)
    assert len(response.workers_info) == len(response.workers)
    counted = await setup.ask(api.CountWorkersRequest(namespace=NAMESPACE, query=query))
    assert counted == api.CountWorkersResponse(count=len(response.workers))
    return [worker.worker_instance_key for worker in response.workers]


# Recorded from the reference server with the same workers.
@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("", ["", "key1", "key2"]),
        ("Nothing = 'x'", []),
        ("TaskQueue > 'other'", []),
        ("TaskQueue STARTS_WITH 't'", ["key1"]),
        ("TaskQueue NOT STARTS_WITH 't'", ["", "key2"]),
        ("TaskQueue = 3", []),
        ("StartTime > '2020-01-01T00:00:00Z'", ["key1", "key2"]),
        ("StartTime > 'now'", []),
        ("HeartbeatTime > '2020-01-01T00:00:00Z'", ["key1", "key2"]),
        ("Status = 'Running'", ["key1", "key2"]),
        ("Status = 'Sleeping'", []),
        ("Status != 'Running'", [""]),
        ("TaskQueue='tq' AND (WorkerIdentity='id1' OR SdkName='x')", ["key1"]),
        ("WorkerInstanceKey='key1'", ["key1"]),
        ("HostName='host'", ["key1", "key2"]),
        ("DeploymentName='dep'", ["key1", "key2"]),
        ("BuildId='b1'", ["key1", "key2"]),
        ("SdkVersion='1.35'", ["key1", "key2"]),
        ("TaskQueue IS NULL", [""]),
        ("BuildId IS NOT NULL", ["key1", "key2"]),
        ("workerinstancekey='key1'", []),
        ("`TaskQueue`='tq'", ["key1"]),
        ('TaskQueue="tq"', ["key1"]),
        ("TaskQueue = 'tq' OR Nothing = 'x'", ["key1"]),
        ("StartTime='2023-11-14T22:13:21Z'", ["key1"]),
        ("StartTime IS NULL", [""]),
        ("TaskQueue = 'it''s'", []),
    ],
)
async def test_a_query_finds_the_matching_workers(setup: Setup, query: str, keys: list[str]) -> None:
    assert await listed(setup, query) == keys


@pytest.mark.parametrize("query", ["(", "TaskQueue", "TaskQueue =", "= 'x'", "TaskQueue = 'x", "(" * 60 + "a = 'b'"])
async def test_a_query_with_a_syntax_error_is_refused(setup: Setup, query: str) -> None:
    with pytest.raises(ApiError, match="malformed query: "):
        await listed(setup, query)


@pytest.mark.parametrize(
    ("query", "problem"),
    # The reference server's messages.
    [
        ("(", "position 29"),
        ("  TaskQueue = ", "position 39"),
        ("TaskQueue = 'x", "position 42 near 'x'"),
        ("TaskQueue = 'orders' foo", "position 52 near 'foo'"),
        ("TaskQueue = 'orders' AND", "position 52"),
    ],
)
async def test_the_error_names_the_position_of_the_fault_in_the_query(setup: Setup, query: str, problem: str) -> None:
    with pytest.raises(ApiError) as raised:
        await listed(setup, query)
    assert str(raised.value) == f"malformed query: syntax error at {problem}"


@pytest.mark.parametrize(("brackets", "is_rejected"), [(DEPTH_MAX, False), (DEPTH_MAX + 1, True), (4000, True)])
async def test_the_nesting_of_parentheses_is_bounded(setup: Setup, *, brackets: int, is_rejected: bool) -> None:
    query = "(" * brackets + "TaskQueue='tq'" + ")" * brackets
    if is_rejected:
        with pytest.raises(ApiError, match="more than 50 brackets"):
            await listed(setup, query)
    else:
        assert await listed(setup, query) == ["key1"]


async def test_a_keyword_may_be_the_name_of_a_field_or_a_value(setup: Setup) -> None:
    assert await listed(setup, "AND = 'x' OR NOT STARTS_WITH 'x' OR TaskQueue = null OR TaskQueue = 'tq'") == ["key1"]


async def test_pages_hold_every_worker_once(setup: Setup) -> None:
    keys: list[str] = []
    token = b""
    while True:
        request = api.ListWorkersRequest(namespace=NAMESPACE, page_size=1, next_page_token=token)
        response = await setup.ask(request)
        assert isinstance(response, api.ListWorkersResponse)
        keys += [worker.worker_instance_key for worker in response.workers]
        token = response.next_page_token
        if not token:
            break

    assert keys == ["", "key1", "key2"]


async def test_a_worker_is_described_by_its_last_heartbeat(setup: Setup) -> None:
    await record(setup, heartbeat(1, task_queue="newer"))

    response = await setup.ask(api.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key="key1"))

    assert isinstance(response, api.DescribeWorkerResponse)
    assert response.worker_info.worker_heartbeat.task_queue == "newer"


async def test_a_worker_without_heartbeats_is_removed(setup: Setup) -> None:
    setup.now_s += SILENT_S_MAX
    await record(setup, heartbeat(1))
    assert await listed(setup) == ["", "key1", "key2"]

    setup.now_s += 1

    assert await listed(setup) == ["key1"]


async def test_a_worker_that_shuts_down_is_removed_and_its_sticky_queue_is_notified(setup: Setup) -> None:
    gone: list[tuple[str, str]] = []

    async def notify(namespace_id: str, sticky_task_queue: str) -> None:
        gone.append((namespace_id, sticky_task_queue))

    setup.frontend.worker_gone = notify

    await setup.ask(
        api.ShutdownWorkerRequest(namespace=NAMESPACE, worker_instance_key="key1", sticky_task_queue="sticky")
    )

    assert await listed(setup) == ["", "key2"]
    assert gone == [(NAMESPACE_ID, "sticky")]


def test_the_number_of_workers_is_bounded_and_the_least_recent_are_removed_first() -> None:
    registry = WorkerRegistry()
    registry.record("n", [heartbeat(number) for number in range(WORKERS_MAX)], now_s=0.0)
    registry.record("n", [heartbeat(0)], now_s=1.0)

    registry.record("n", [heartbeat(WORKERS_MAX)], now_s=2.0)

    assert len(registry.list("n", None, now_s=2.0)) == WORKERS_MAX
    assert registry.find("n", "key0", now_s=2.0) is not None
    assert registry.find("n", "key1", now_s=2.0) is None


async def test_a_list_has_the_workers_of_its_own_namespace_only(setup: Setup) -> None:
    assert await setup.ask(api.ListWorkersRequest(namespace="second")) == api.ListWorkersResponse()
