"""One page of metrics for all processes of a supervisor: each series has the label `process`."""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping

from fairlead.telemetry import Metrics, MetricsEndpoint, get_log
from fairlead.telemetry.events import PROCESS_RESTARTS, PROCESS_UP
from fairlead.telemetry.page import Page

# Seconds and bytes that the page of a process may take.
SCRAPE_S_MAX = 5.0
PAGE_BYTES_MAX = 64 * 1024 * 1024
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_log = get_log("supervisor")

# Address of the metrics of each process; None for one that does not serve.
Sources = Mapping[int, str | None]


class MergedEndpoint:
    """Serves the metrics of all processes, fetched at each scrape, and their health: at least one must serve."""

    def __init__(
        self,
        listen: str,
        *,
        sources: Callable[[], Sources],
        restarts: Mapping[int, int],
        key: str = "metrics.listen",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._sources = sources
        self._restarts = restarts
        self._endpoint = MetricsEndpoint(
            Metrics(), listen, page=self._page, why_not_serving=self._why_not_serving, key=key, tls=tls
        )

    @property
    def address(self) -> str:
        """Address of the endpoint, with the actual port."""
        return self._endpoint.address

    async def start(self) -> None:
        """Start to serve; raise `CannotListen` if the address can't be used."""
        await self._endpoint.start()

    async def stop(self) -> None:
        """Stop for good."""
        await self._endpoint.stop()

    def _why_not_serving(self) -> str | None:
        return None if any(self._sources().values()) else "no process serves"

    async def _page(self) -> tuple[str, bytes]:
        sources = self._sources()
        pages = await asyncio.gather(*(_scraped(number, address) for number, address in sources.items()))
        found = {str(number): page for number, page in zip(sources, pages, strict=True) if page is not None}
        own = Page(is_openmetrics=False)
        own.values(PROCESS_UP, [((str(number),), int(str(number) in found)) for number in sources])
        own.values(PROCESS_RESTARTS, [((str(number),), count) for number, count in self._restarts.items()])
        # In a thread: a large page would delay the hand-over of connections.
        return CONTENT_TYPE, await asyncio.to_thread(merged, found) + own.encode()


def merged(pages: Mapping[str, str]) -> bytes:
    """Merge pages in Prometheus' text format: the series of a metric stay together, each with the label `process`."""
    heads: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for process, page in pages.items():
        metric = ""
        for line in page.splitlines():
            if line.startswith("# "):
                _, kind, metric, *_ = line.split(" ", 3)
                head = heads.setdefault(metric, [])
                if kind in ("HELP", "TYPE") and line not in head:
                    head.append(line)
            elif line:
                series.setdefault(metric, []).append(_labelled(line, process))
    lines: Iterable[str] = (line for metric, head in heads.items() for line in (*head, *series.get(metric, ())))
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(line: str, process: str) -> str:
    name, brace, rest = line.partition("{")
    if brace and " " not in name:
        return f'{name}{{process="{process}"{"" if rest.startswith("}") else ","}{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{process="{process}"}} {value}'


async def _scraped(number: int, address: str | None) -> str | None:
    """The page of a process; None if it has none now."""
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(SCRAPE_S_MAX):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=PAGE_BYTES_MAX)
            try:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                content = await reader.read(PAGE_BYTES_MAX) if b" 200 " in head.split(b"\r\n", 1)[0] else None
                while content and (more := await reader.read(PAGE_BYTES_MAX - len(content))):
                    content += more
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as failed:
        _log.warning("process gave no metrics", process=number, error=str(failed) or type(failed).__name__)
        return None
    return None if content is None else content.decode()
