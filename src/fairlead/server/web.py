"""The addresses at which a frontend serves HTTP: the HTTP API and the web page."""

import ssl
from collections.abc import Mapping
from functools import partial

from structlog.typing import FilteringBoundLogger

from fairlead.console.backend import Backend
from fairlead.frontend import SERVICES, Frontend
from fairlead.rpc import UnaryHandler
from fairlead.server.http_endpoint import HttpEndpoint, WebApp
from fairlead.settings.dynamic.http import ALLOWED_HOSTS
from fairlead.settings.static.config import Address, HttpConfig, StaticConfig, UiConfig
from fairlead.telemetry import HTTP_SERVICE_REQUESTS, Metrics


def http_endpoints(
    config: StaticConfig,
    frontend: Frontend,
    table: Mapping[str, UnaryHandler],
    *,
    metrics: Metrics,
    log: FilteringBoundLogger,
    tls: ssl.SSLContext | None = None,
    backend: Backend | None = None,
) -> dict[str, HttpEndpoint]:
    """The configured endpoints by name; `table` has the handler of each method by its path.

    With `tls`, a server-side context, they speak HTTPS. With a `backend`, the web page has the console.
    """
    endpoints: dict[str, HttpEndpoint] = {}
    if config.http is not None:
        endpoints["http"] = HttpEndpoint(
            config.http.listen,
            partial(_load_api, config, config.http, frontend, table, metrics),
            log=log,
            key=config.spelled("frontend.http.listen"),
            host_key=config.flags.get("frontend.http.listen.host"),
            tls=tls,
        )
    if config.ui is not None:
        endpoints["ui"] = HttpEndpoint(
            Address(config.ui.host, config.ui.port),
            partial(_load_ui, config, config.ui, frontend, table, metrics=metrics, backend=backend),
            log=log,
            key=config.spelled("ui.listen"),
            host_key=config.flags.get("ui.listen.host"),
            tls=tls,
        )
    return endpoints


def _credential_headers(config: StaticConfig) -> tuple[str, ...]:
    """Names of the headers by which callers authenticate themselves."""
    authorization = config.security.authorization
    return authorization.header, authorization.extras_header


def _load_api(
    whole: StaticConfig, config: HttpConfig, frontend: Frontend, table: Mapping[str, UnaryHandler], metrics: Metrics
) -> WebApp:
    # Imported late: see `http_endpoint`.
    from fairlead.frontend.http import HttpApi  # noqa: PLC0415
    from fairlead.http.guard import Guard, is_loopback  # noqa: PLC0415

    guard = Guard(
        is_loopback=is_loopback(config.listen.host), allowed_hosts=lambda: frontend.settings.get(ALLOWED_HOSTS)
    )
    count = partial(metrics.count, HTTP_SERVICE_REQUESTS)
    forwarded = (*config.forwarded_headers, *_credential_headers(whole))
    return HttpApi(SERVICES, table, guard=guard, forwarded_headers=forwarded, count=count)


def _load_ui(
    whole: StaticConfig,
    config: UiConfig,
    frontend: Frontend,
    table: Mapping[str, UnaryHandler],
    *,
    metrics: Metrics,
    backend: Backend | None,
) -> WebApp:
    # Imported late: see `http_endpoint`.
    from fairlead.frontend.http import HttpApi  # noqa: PLC0415
    from fairlead.http.guard import Guard, is_loopback  # noqa: PLC0415
    from fairlead.ui.app import UiApp, UiOptions  # noqa: PLC0415

    guard = Guard(is_loopback=is_loopback(config.host), allowed_hosts=lambda: frontend.settings.get(ALLOWED_HOSTS))
    # The header that the page sends beyond the usual ones.
    forwarded = ("Caller-Type", *_credential_headers(whole))
    api = HttpApi(SERVICES, table, forwarded_headers=forwarded, count=partial(metrics.count, HTTP_SERVICE_REQUESTS))
    options = UiOptions(config.asset_path, config.public_path, config.codec_endpoint)
    if backend is None:
        return UiApp(api, options, guard=guard)
    from fairlead.console.app import Console, ConsoleOptions  # noqa: PLC0415

    console = Console(
        api,
        backend,
        ConsoleOptions(
            public_path=config.public_path,
            codec_endpoint=config.codec_endpoint,
            has_official_pages=lambda: app.has_pages,
        ),
    )
    app = UiApp(
        api,
        options,
        guard=guard,
        mounts={"console": console.handle},
        on_refusal={"console": console.refuse},
        on_drain=console.end,
    )
    return app
