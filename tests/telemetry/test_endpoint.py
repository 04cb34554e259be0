import asyncio
import gzip
import socket
from collections.abc import AsyncIterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from fairlead.core.partitions import TaskType
from fairlead.telemetry import CannotListen, Metrics, MetricsEndpoint, PartitionGauges
from fairlead.telemetry.endpoint import CONNECTIONS_MAX, REQUEST_BYTES_MAX
from tests.patience import step
from tests.telemetry.scrapes import OPENMETRICS, families_of


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics()
    metrics.partition("n", "t", TaskType.ACTIVITY, 0).tasks_added += 42
    return metrics


@pytest.fixture
async def endpoint(metrics: Metrics) -> AsyncIterator[MetricsEndpoint]:
    endpoint = MetricsEndpoint(metrics)
    await endpoint.start()
    yield endpoint
    await endpoint.stop()


async def ask(
    endpoint: MetricsEndpoint, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[HTTPResponse, bytes]:
    def request() -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection(endpoint.address, timeout=10)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    return await asyncio.to_thread(request)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the end; nothing if the connection was reset."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def send(endpoint: MetricsEndpoint, request: bytes) -> bytes:
    """Send raw bytes, and return the response until the connection closes."""
    host, port = endpoint.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await read_to_end(reader)
    writer.transport.abort()
    return answer


async def test_a_scrape_has_prometheus_text_format(endpoint: MetricsEndpoint) -> None:
    answer, content = await ask(endpoint, "/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    (sample,) = families_of(content, is_openmetrics=False)["tasks_added"].samples
    assert sample.value == 42
    assert sample.labels == {"namespace": "n", "taskqueue": "t", "task_type": "Activity", "partition": "0"}


async def test_a_scrape_has_openmetrics_format_if_the_client_accepts_it(endpoint: MetricsEndpoint) -> None:
    answer, content = await ask(endpoint, "/metrics", headers={"Accept": f"{OPENMETRICS},text/plain;q=0.5"})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    (sample,) = families_of(content, is_openmetrics=True)["tasks_added"].samples
    assert (sample.name, sample.value) == ("tasks_added", 42)


async def test_a_scrape_is_compressed_if_the_client_accepts_gzip(endpoint: MetricsEndpoint) -> None:
    answer, content = await ask(endpoint, "/metrics", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert "tasks_added" in families_of(gzip.decompress(content), is_openmetrics=False)


async def test_counts_after_a_scrape_are_in_the_next_one(endpoint: MetricsEndpoint, metrics: Metrics) -> None:
    await ask(endpoint, "/metrics")
    metrics.partition("n", "t", TaskType.ACTIVITY, 0).tasks_added += 1
    _, content = await ask(endpoint, "/metrics?anything=here")
    assert families_of(content, is_openmetrics=False)["tasks_added"].samples[0].value == 43


async def test_a_large_scrape_arrives_completely(endpoint: MetricsEndpoint, metrics: Metrics) -> None:
    for number in range(300):
        metrics.partition("n", f"task queue {number}", TaskType.WORKFLOW, number)
    answer, content = await ask(endpoint, "/metrics")
    assert len(content) == int(answer.headers["Content-Length"]) > 1_000_000
    assert len(families_of(content, is_openmetrics=False)["tasks_added"].samples) == 301


async def test_a_slow_reader_gets_the_whole_scrape(endpoint: MetricsEndpoint, metrics: Metrics) -> None:
    for number in range(300):
        metrics.partition("n", f"task queue {number}", TaskType.WORKFLOW, number)
    host, port = endpoint.address.split(":")
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(connection, (host, int(port)))
        await loop.sock_sendall(connection, b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = b""
        while piece := await loop.sock_recv(connection, 65_536):
            answer += piece
            await asyncio.sleep(0.0005)
    head, _, content = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(content)}\r\n".encode() in head
    assert content.endswith(b"\n")


async def test_the_health_check_returns_the_state_of_the_process(metrics: Metrics) -> None:
    why_not: str | None = None
    endpoint = MetricsEndpoint(metrics, why_not_serving=lambda: why_not)
    await endpoint.start()
    answer, content = await ask(endpoint, "/healthz")
    assert (answer.status, content) == (200, b"serving\n")
    why_not = "store unavailable"
    answer, content = await ask(endpoint, "/healthz")
    assert (answer.status, content) == (503, b"store unavailable\n")
    await endpoint.stop()


async def test_other_paths_and_methods_are_rejected(endpoint: MetricsEndpoint) -> None:
    for path in ("/", "/metrics/", "/favicon.ico", "/../metrics"):
        answer, _ = await ask(endpoint, path)
        assert answer.status == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        answer, _ = await ask(endpoint, "/metrics", method=method)
        assert answer.status == 405, method
        assert answer.headers["Allow"] == "GET, HEAD"


async def test_a_head_response_has_no_body(endpoint: MetricsEndpoint) -> None:
    answer = await send(endpoint, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 8\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics SPDY/3\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\xff\xfe: \x00\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * (REQUEST_BYTES_MAX - 100) + b"\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES_MAX + b"\r\n\r\n", 431),
        (b"G" * (4 * REQUEST_BYTES_MAX), 431),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000, 405),
    ],
)
async def test_every_request_gets_a_response_even_if_it_is_malformed(
    endpoint: MetricsEndpoint, request_bytes: bytes, status: int
) -> None:
    answer = await send(endpoint, request_bytes)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_aborted_connections_do_not_affect_others(endpoint: MetricsEndpoint) -> None:
    host, port = endpoint.address.split(":")
    for request in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n"):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        writer.transport.abort()
    answer, _ = await ask(endpoint, "/healthz")
    assert answer.status == 200


async def test_a_client_that_sends_nothing_is_disconnected_after_a_timeout(
    endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.telemetry.endpoint.CONNECTION_S_MAX", 0.05)
    async with asyncio.timeout(5):
        assert await send(endpoint, b"GET /metrics HTTP/1.1\r\n") == b""


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\n\r\n"])
async def test_idle_connections_make_room_for_a_health_check(endpoint: MetricsEndpoint, sent: bytes) -> None:
    """Clients that send nothing, half a request, or never close after their response do not keep others out."""
    host, port = endpoint.address.split(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX)]
    for reader, writer in idle:
        writer.write(sent)
        if sent.endswith(b"\r\n\r\n"):
            await reader.read()
    async with asyncio.timeout(5):
        for _ in range(3):
            assert b"serving" in await send(endpoint, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert await read_to_end(idle[0][0]) == b""
    for _, writer in idle:
        writer.transport.abort()


async def test_connections_above_the_limit_are_refused_while_all_others_are_served(
    endpoint: MetricsEndpoint,
) -> None:
    host, port = endpoint.address.split(":")
    async with endpoint._rendering:
        busy = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX)]
        for _, writer in busy:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(5):
            while len(endpoint._idle) or len(endpoint._connections) < CONNECTIONS_MAX:  # noqa: ASYNC110 - it happens in other tasks
                await asyncio.sleep(0)
        assert await send(endpoint, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
    for reader, writer in busy:
        assert b"200 OK" in await reader.read()
        writer.transport.abort()


async def test_many_concurrent_scrapes_all_get_a_response(endpoint: MetricsEndpoint) -> None:
    answers = await asyncio.gather(*(ask(endpoint, "/metrics") for _ in range(CONNECTIONS_MAX - 1)))
    assert [answer.status for answer, _ in answers] == [200] * (CONNECTIONS_MAX - 1)


async def test_a_failing_source_fails_the_scrape_but_not_the_endpoint(
    endpoint: MetricsEndpoint, metrics: Metrics, capsys: pytest.CaptureFixture[str]
) -> None:
    def statuses() -> list[PartitionGauges]:
        raise RuntimeError("no status")

    metrics.watch(statuses)
    answer, content = await ask(endpoint, "/metrics")
    assert (answer.status, content) == (500, b"Internal Server Error\n")
    logged = capsys.readouterr().err
    assert "scrape failed" in logged
    assert "RuntimeError: no status" in logged
    answer, _ = await ask(endpoint, "/healthz")
    assert answer.status == 200


async def test_stop_aborts_open_connections_and_can_be_repeated(metrics: Metrics) -> None:
    endpoint = MetricsEndpoint(metrics)
    await endpoint.stop()
    await endpoint.start()
    host, port = endpoint.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HT")
    await writer.drain()
    await step()
    async with asyncio.timeout(2):
        await endpoint.stop()
        await endpoint.stop()
    assert await read_to_end(reader) == b""
    writer.transport.abort()
    with pytest.raises(OSError, match=port):
        await asyncio.open_connection(host, int(port))


async def test_an_address_in_use_raises_cannot_listen(endpoint: MetricsEndpoint, metrics: Metrics) -> None:
    with pytest.raises(CannotListen, match=f"{endpoint.address}: Address already in use; stop what listens there"):
        await MetricsEndpoint(metrics, endpoint.address).start()


@pytest.mark.parametrize("listen", ["", "9090", ":9090", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "::1:90", "a:b"])
def test_an_invalid_address_is_rejected(metrics: Metrics, listen: str) -> None:
    with pytest.raises(CannotListen, match=r"write it like 127\.0\.0\.1:9090"):
        MetricsEndpoint(metrics, listen)


async def test_the_endpoint_listens_on_loopback_by_default(endpoint: MetricsEndpoint) -> None:
    assert endpoint.address.startswith("127.0.0.1:")
    assert not endpoint.address.endswith(":0")
    assert MetricsEndpoint(Metrics(), "[::1]:9090").address == "[::1]:9090"
