"""Requests of the HTTP API on handlers of the test's own: what reaches them, and how they are answered."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message import Message
from temporalio.api.common.v1 import GrpcStatus, Payload, Payloads, Priority, WorkflowExecution
from temporalio.api.errordetails.v1 import NotFoundFailure
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
    GetSystemInfoResponse,
    GetWorkerTaskReachabilityRequest,
    GetWorkflowExecutionHistoryRequest,
    ListScheduleMatchingTimesRequest,
    QueryWorkflowResponse,
    SignalWorkflowExecutionRequest,
    SignalWorkflowExecutionResponse,
)

from fairlead.frontend import SERVICES, WORKFLOW_SERVICE
from fairlead.frontend.http import HttpApi
from fairlead.frontend.http.json_codec import encode
from fairlead.http import HttpFault, Request, Response
from fairlead.http.guard import Guard
from fairlead.rpc import Call, Code, RpcStatus, UnaryHandler

SIGNAL = "/api/v1/namespaces/default/workflows/w/signal/s"
HISTORY = "/namespaces/default/workflows/w/history"


class Behind:
    """Keeps the last call, and answers all calls alike."""

    def __init__(self, answer: Message | RpcStatus) -> None:
        self._answer = answer
        self.call: Call
        self.data = b""
        self.counted: list[str] = []

    def api(self, **options: Any) -> HttpApi:
        async def handle(data: bytes, call: Call) -> bytes:
            self.data, self.call = data, call
            if isinstance(self._answer, RpcStatus):
                raise self._answer
            return self._answer.SerializeToString()

        return HttpApi(SERVICES, _table(handle), count=self.counted.append, **options)


def _table(handle: UnaryHandler) -> Mapping[str, UnaryHandler]:
    return {f"/{api.full_name}/{method.name}": handle for api in SERVICES for method in api.methods}


def request(method: str, target: str, body: bytes | str = b"", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body.encode() if isinstance(body, str) else body
    return Request(method, target, {"host": "localhost", **named}, data, peer="10.1.2.3")


def text(response: Response) -> str:
    assert isinstance(response.body, bytes)
    return response.body.decode()


async def asked(target: str, kind: type[Message], method: str = "GET", body: str = "") -> Any:
    """The request message that reaches the handler."""
    behind = Behind(GetSystemInfoResponse())
    response = await behind.api().handle(request(method, target, body))
    assert response.status == 200, text(response)
    return kind.FromString(behind.data)


async def refused(target: str, method: str = "GET", body: str | bytes = "") -> str:
    """The message of the error, which is that of a bad request."""
    response = await Behind(GetSystemInfoResponse()).api().handle(request(method, target, body))
    assert response.status == 400
    error = json.loads(text(response))
    assert error["code"] == Code.INVALID_ARGUMENT
    return str(error["message"])


async def test_a_path_with_a_percent_encoded_slash_is_one_id() -> None:
    found = await asked("/api/v1/namespaces/a%20b/workflows/one%2Ftwo%25", DescribeWorkflowExecutionRequest)
    assert (found.namespace, found.execution.workflow_id) == ("a b", "one/two%")


async def test_query_parameters_set_fields_by_either_name() -> None:
    found = await asked(
        f"{HISTORY}?maximumPageSize=7&wait_new_event=true&historyEventFilterType=2&nextPageToken=_-8&execution.runId=r"
        "&execution.workflowId=ignored&namespace=ignored&unknown=1&execution.unknown.deeper=1&maximumPageSize.x=1",
        GetWorkflowExecutionHistoryRequest,
    )
    assert found == GetWorkflowExecutionHistoryRequest(
        namespace="default",
        execution=WorkflowExecution(workflow_id="w", run_id="r"),
        maximum_page_size=7,
        wait_new_event=True,
        history_event_filter_type=2,  # type: ignore[arg-type] # An enum's number.
        next_page_token=b"\xff\xef",
    )


async def test_repeated_fields_times_and_maps_are_read_from_the_query() -> None:
    found = await asked(
        "/namespaces/n/worker-task-reachability?buildIds=1&build_ids=2", GetWorkerTaskReachabilityRequest
    )
    assert list(found.build_ids) == ["1", "2"]
    times = await asked(
        "/namespaces/n/schedules/s/matching-times?startTime=2026-01-02T03:04:05.5Z", ListScheduleMatchingTimesRequest
    )
    assert times.start_time.ToJsonString() == "2026-01-02T03:04:05.500Z"
    queue = await asked(
        "/namespaces/n/task-queues/q?taskQueueType=TASK_QUEUE_TYPE_ACTIVITY&versions.unversioned=1",
        DescribeTaskQueueRequest,
    )
    assert (queue.task_queue_type, queue.versions.unversioned) == (2, True)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("maximumPageSize=x", 'parsing field "maximum_page_size": strconv.ParseInt: parsing "x": invalid syntax'),
        (
            "maximumPageSize=99999999999",
            'parsing field "maximum_page_size": strconv.ParseInt: parsing "99999999999": value out of range',
        ),
        ("maximumPageSize=" + "9" * 5000, "value out of range"),
        ("maximumPageSize=1&maximumPageSize=2", 'too many values for field "maximum_page_size": 1, 2'),
        ("waitNewEvent=maybe", 'parsing field "wait_new_event": strconv.ParseBool: parsing "maybe": invalid syntax'),
        ("historyEventFilterType=BAD", 'parsing field "history_event_filter_type": "BAD" is not a valid value'),
        ("historyEventFilterType=77", 'parsing field "history_event_filter_type": "77" is not a valid value'),
        ("nextPageToken=%21", 'parsing field "next_page_token": illegal base64 data'),
        ("execution=x", 'unsupported message type: "temporal.api.common.v1.WorkflowExecution"'),
        ("nextPageToken=%%%", 'invalid URL escape "%%%"'),
        ("namespace.x=1&namespace[a]=1&maximumPageSize[a]=1", 'parsing field "maximum_page_size": it is not a map'),
    ],
)
async def test_a_parameter_that_does_not_fit_is_named(query: str, message: str) -> None:
    assert message in await refused(f"{HISTORY}?{query}")


async def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(HttpFault, match="parameters"):
        await Behind(GetSystemInfoResponse()).api().handle(request("GET", f"{HISTORY}?" + "a=1&" * 2000))


async def test_the_path_wins_over_the_body() -> None:
    found = await asked(
        SIGNAL, SignalWorkflowExecutionRequest, "POST", '{"namespace": "other", "signalName": "x", "identity": "me"}'
    )
    assert (found.namespace, found.signal_name, found.identity) == ("default", "s", "me")


async def test_a_post_without_a_body_is_an_empty_request() -> None:
    found = await asked(SIGNAL, SignalWorkflowExecutionRequest, "POST", " \n")
    assert found.signal_name == "s"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "the body is not JSON"),
        ("[]", "the body is not a JSON object"),
        ("null", "the body is not a JSON object"),
        ('{"unknown": 1}', 'has no field named "unknown"'),
        ('{"identity": 5}', "Failed to parse identity field"),
        ('{"input": "x"}', "Failed to parse input field"),
        ('{"input": [{"_protoMessageType": 5}]}', '"_protoMessageType" is not a string'),
        ("[" * 100_000, "levels"),
        ('{"input": ' + "[" * 100_000, "levels"),
        (b'{"identity": "\xff"}', "UTF-8"),
        (b'{"identity": "\\ud800"}', "the body is not JSON"),
    ],
)
async def test_a_body_that_does_not_fit_is_refused(body: str | bytes, message: str) -> None:
    assert message in await refused(SIGNAL, "POST", body)


def payload(encoding: str, data: bytes, **metadata: bytes) -> Payload:
    return Payload(metadata={"encoding": encoding.encode(), **metadata}, data=data)


NULL = Payload(metadata={"encoding": b"binary/null"})
LONG = {"metadata": {"encoding": "YmluYXJ5L3g="}, "data": "AA=="}


@pytest.mark.parametrize(
    ("payloads", "written"),
    [
        (
            [payload("json/plain", b' {"b" : 1.50, "a": [12345678901234567890]} ')],
            '[{"b":1.50,"a":[12345678901234567890]}]',
        ),
        ([NULL, payload("json/plain", b'"x"')], '[null,"x"]'),
        (
            [payload("json/protobuf", b'{"a":1}', messageType=b"x.Y")],
            '[{"a":1,"_protoMessageType":"x.Y"}]',
        ),
        ([payload("json/protobuf", b"{}", messageType=b"x.Y")], '[{"_protoMessageType":"x.Y"}]'),
        (
            [payload("json/plain", b"1"), payload("binary/x", b"\0")],
            '{"payloads":[1,{"metadata":{"encoding":"YmluYXJ5L3g="},"data":"AA=="}]}',
        ),
        (
            [payload("json/plain", b"{bad")],
            '{"payloads":[{"metadata":{"encoding":"anNvbi9wbGFpbg=="},"data":"e2JhZA=="}]}',
        ),
        (
            [payload("json/plain", b'"\xff"')],
            '{"payloads":[{"metadata":{"encoding":"anNvbi9wbGFpbg=="},"data":"Iv8i"}]}',
        ),
        (
            [payload("json/plain", b"1", k=b"v")],
            '{"payloads":[{"metadata":{"encoding":"anNvbi9wbGFpbg==","k":"dg=="},"data":"MQ=="}]}',
        ),
        (
            [payload("json/protobuf", b'"5s"', messageType=b"x.Y")],
            '{"payloads":[{"metadata":{"encoding":"anNvbi9wcm90b2J1Zg==","messageType":"eC5Z"},"data":"IjVzIg=="}]}',
        ),
    ],
)
async def test_payloads_are_written_in_short_form_and_read_back(payloads: list[Payload], written: str) -> None:
    behind = Behind(QueryWorkflowResponse(query_result=Payloads(payloads=payloads)))
    response = await behind.api().handle(request("POST", "/namespaces/n/workflows/w/query/q", "{}"))
    assert text(response) == f'{{"queryResult":{written}}}'
    found = await asked(SIGNAL, SignalWorkflowExecutionRequest, "POST", f'{{"input": {written}}}')
    assert [one.metadata for one in found.input.payloads] == [one.metadata for one in payloads]
    for got, expected in zip(found.input.payloads, payloads, strict=True):
        if got.data != expected.data:
            assert json.loads(got.data) == json.loads(expected.data)


@pytest.mark.parametrize(
    ("target", "accept", "content_type", "body"),
    [
        ("?pretty", "", "application/json+pretty", '{\n  "queryResult": [\n    1\n  ]\n}'),
        ("", "application/json+pretty", "application/json+pretty", '{\n  "queryResult": [\n    1\n  ]\n}'),
        (
            "?noPayloadShorthand",
            "",
            "application/json+no-payload-shorthand",
            '{"queryResult":{"payloads":[{"metadata":{"encoding":"anNvbi9wbGFpbg=="},"data":"MQ=="}]}}',
        ),
        (
            "",
            "application/json+no-payload-shorthand",
            "application/json+no-payload-shorthand",
            '{"queryResult":{"payloads":[{"metadata":{"encoding":"anNvbi9wbGFpbg=="},"data":"MQ=="}]}}',
        ),
        ("", "text/html, */*", "application/json", '{"queryResult":[1]}'),
    ],
)
async def test_the_caller_chooses_the_format(target: str, accept: str, content_type: str, body: str) -> None:
    behind = Behind(QueryWorkflowResponse(query_result=Payloads(payloads=[payload("json/plain", b"1")])))
    headers = {"accept": accept} if accept else {}
    response = await behind.api().handle(request("POST", f"/namespaces/n/workflows/w/query/q{target}", "", **headers))
    assert (response.content_type, text(response)) == (content_type, body)


async def test_a_32_bit_float_is_written_with_its_shortest_digits() -> None:
    numbers = {
        0.1: "0.1",
        0.14453751: "0.14453751",
        1.0: "1",
        1e-8: "1e-8",
        16777217.0: "16777216",
        1e38: "1e38",
    }
    for number, written in numbers.items():
        found = encode(Priority(fairness_weight=number), has_shorthand=True)
        assert found == f'{{"fairnessWeight":{written}}}'.encode()
    assert encode(Priority(fairness_weight=math.inf), has_shorthand=True) == b'{"fairnessWeight":"Infinity"}'


async def test_an_error_has_its_code_message_and_details() -> None:
    detail = Packed()
    detail.Pack(NotFoundFailure(current_cluster="a"))
    unknown = Packed(type_url="type.googleapis.com/x.Unknown", value=b"\x01")
    status = GrpcStatus(details=[detail, unknown]).SerializeToString()
    behind = Behind(RpcStatus(Code.NOT_FOUND, "workflow not found", status))
    response = await behind.api().handle(request("GET", "/api/v1/namespaces/n/workflows/w"))
    assert response.status == 404
    assert json.loads(text(response)) == {
        "code": 5,
        "message": "workflow not found",
        "details": [
            {"@type": "type.googleapis.com/temporal.api.errordetails.v1.NotFoundFailure", "currentCluster": "a"},
            {"@type": "type.googleapis.com/x.Unknown", "value": "AQ=="},
        ],
    }


async def test_unknown_paths_and_verbs_get_different_errors_and_share_a_counter() -> None:
    behind = Behind(GetSystemInfoResponse())
    api = behind.api()
    for method, target, status, error in (
        ("GET", "/nowhere", 404, {"code": 5, "message": "Not Found"}),
        ("GET", "/api/v1/namespaces/n/workflows/w/history/more", 404, {"code": 5, "message": "Not Found"}),
        ("PUT", "/api/v1/namespaces/n/workflows/w", 501, {"code": 12, "message": "Method Not Allowed"}),
        ("GET", "*", 404, {"code": 5, "message": "Not Found"}),
    ):
        response = await api.handle(request(method, target))
        assert (response.status, json.loads(text(response))) == (status, error)
    await api.handle(request("GET", "/system-info"))
    assert behind.counted == ["unknown"] * 4 + ["GetSystemInfo"]


async def test_the_usual_headers_reach_the_handler_and_others_do_not() -> None:
    behind = Behind(GetSystemInfoResponse())
    api = behind.api(forwarded_headers=["X-Tenant", "X-Trace-*"])
    headers = {
        "authorization": "Bearer t",
        "authorization-extras": "e",
        "client-name": "c",
        "client-version": "1.2.3",
        "x-forwarded-for": "1.1.1.1",
        "x-tenant": "tenant",
        "x-trace-id": "7",
        "grpc-metadata-a": "b",
        "grpc-metadata-b-bin": "AAE",
        "grpc-metadata-grpc-timeout": "1S",
        "cookie": "secret=1",
        "x-other": "other",
        "host": "localhost",
    }
    await api.handle(Request("GET", "/system-info", headers, b"", peer="10.1.2.3"))
    assert dict(behind.call.metadata) == {
        "authorization": "Bearer t",
        "authorization-extras": "e",
        "client-name": "c",
        "client-version": "1.2.3",
        "x-forwarded-for": "1.1.1.1, 10.1.2.3",
        "x-tenant": "tenant",
        "x-trace-id": "7",
        "a": "b",
    }
    assert dict(behind.call.binary_metadata) == {"b-bin": b"\0\1"}
    assert behind.call.path == f"/{WORKFLOW_SERVICE}/GetSystemInfo"
    assert behind.call.peer == "10.1.2.3"


async def test_a_timeout_ends_a_call_that_waits() -> None:
    async def wait(_: bytes, call: Call) -> bytes:
        assert call.remaining_s() is not None
        await asyncio.Event().wait()
        raise AssertionError

    api = HttpApi(SERVICES, _table(wait))
    response = await api.handle(request("GET", "/system-info", grpc_timeout="10m"))
    assert (response.status, json.loads(text(response))["message"]) == (504, "context deadline exceeded")
    response = await api.handle(request("GET", "/system-info", grpc_timeout="soon"))
    assert (response.status, json.loads(text(response))["message"]) == (400, "invalid grpc-timeout: soon")


async def test_a_guard_refuses_before_the_handler() -> None:
    behind = Behind(SignalWorkflowExecutionResponse())
    api = behind.api(guard=Guard(is_loopback=True))
    with pytest.raises(HttpFault, match="not allowed") as cross_origin:
        await api.handle(request("POST", SIGNAL, origin="http://evil.example"))
    assert behind.data == b""
    refusal = api.refuse(cross_origin.value)
    assert (refusal.status, json.loads(text(refusal))["code"]) == (403, Code.PERMISSION_DENIED)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (413, 400, Code.INVALID_ARGUMENT),
        (431, 400, Code.INVALID_ARGUMENT),
        (503, 503, Code.UNAVAILABLE),
        (500, 500, Code.INTERNAL),
    ],
)
def test_errors_of_the_server_itself_look_like_those_of_the_api(fault: int, status: int, code: Code) -> None:
    response = Behind(GetSystemInfoResponse()).api().refuse(HttpFault(fault, "m"))
    assert (response.status, json.loads(text(response))["code"]) == (status, code)


async def _document(path: str, read: Callable[[str], Any]) -> Any:
    response = await Behind(GetSystemInfoResponse()).api().handle(request("GET", path))
    return read(text(response))


async def test_the_documents_for_tools_have_every_binding_and_no_dangling_reference() -> None:
    openapi = await _document("/openapi.yaml", lambda content: yaml.load(content, yaml.CSafeLoader))
    swagger = await _document("/swagger.json", json.loads)
    bindings = {(one.verb.lower(), one.template) for one in Behind(GetSystemInfoResponse()).api().bindings}
    for document, prefix, schemas in (
        (openapi, "#/components/schemas/", openapi["components"]["schemas"]),
        (swagger, "#/definitions/", swagger["definitions"]),
    ):
        assert {(verb, path) for path, verbs in document["paths"].items() for verb in verbs} == bindings
        references = set(_references(document))
        assert references
        assert {name.removeprefix(prefix) for name in references} <= set(schemas)
        names = [one["operationId"] for verbs in document["paths"].values() for one in verbs.values()]
        assert len(names) == len(set(names))


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for member in value.values() for found in _references(member)]
    if isinstance(value, list):
        return [found for member in value for found in _references(member)]
    return []
