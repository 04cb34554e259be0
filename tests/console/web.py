"""A server with the console in this process, and a client that keeps cookies as a browser does."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fairlead.authorization.messages import CREATE_KEY, CreateKeyRequest
from fairlead.matching.connection import new_caller
from fairlead.rpc.hosts.credentials import with_secret
from fairlead.server.process import Server
from fairlead.settings.static.authorization import AuthorizationConfig
from fairlead.settings.static.clusters import ClusterConfig
from fairlead.settings.static.config import (
    Address,
    JournalConfig,
    MemoryConfig,
    NamespaceConfig,
    PostgresConfig,
    SecurityConfig,
    StaticConfig,
    UiConfig,
)
from tests.frontend.http.client import Client, Reply

SECRET = "a secret of the hosts, at least 32 characters"  # noqa: S105 - of a test


@dataclass
class Visitor:
    """Sends requests to the console, with the cookies that it was given."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    async def send(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Reply:
        if self.cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        async with Client(self.port) as client:
            reply = await client.send(method, target, body, **headers)
        for line in reply.headers.get("set-cookie", "").splitlines():
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
        return reply

    async def get(self, path: str, **parameters: str) -> Reply:
        return await self.send("GET", f"/console/{path}" + (f"?{urlencode(parameters)}" if parameters else ""))

    async def data(self, path: str, **parameters: str) -> Any:
        reply = await self.get(f"{path}.json", **parameters)
        assert reply.status == 200, reply.body
        return json.loads(reply.body)

    async def post(self, path: str, form: Mapping[str, str], **headers: str) -> Reply:
        """Submit a form with the token of the cookie."""
        body = urlencode({"_csrf": self.cookies.get("_csrf", ""), **form}).encode()
        given = {"content_type": "application/x-www-form-urlencoded", **headers}
        return await self.send("POST", f"/console/{path}", body, **given)

    async def sign_in(self, key: str) -> Reply:
        await self.get("sign-in")
        return await self.post("sign-in", {"token": key})


@asynccontextmanager
async def running_console(
    *,
    journal: Path | None = None,
    is_guarded: bool = False,
    namespaces: tuple[str, ...] = ("default",),
    lake: Path | None = None,
    port: int = 0,
    cluster: ClusterConfig | None = None,
    dynamic_file: Path | None = None,
    header: str = "authorization",
    store: MemoryConfig | PostgresConfig | None = None,
) -> AsyncIterator[tuple[Server, Visitor]]:
    """A server with the console on loopback."""
    server = Server(
        StaticConfig(
            frontend_listen=Address("127.0.0.1", port),
            listen=Address("127.0.0.1", 0),
            ui=UiConfig("127.0.0.1", 0, lake=lake),
            cluster=cluster,
            dynamic_file=dynamic_file,
            store=store or MemoryConfig(),
            namespaces=tuple(NamespaceConfig(name) for name in namespaces),
            journal=None if journal is None else JournalConfig(journal),
            security=SecurityConfig(AuthorizationConfig(authorizer="default", header=header), secret=SECRET)
            if is_guarded
            else SecurityConfig(),
            hand_over_s=0.0,
            grace_s=0.0,
        )
    )
    await server.start()
    try:
        assert server.ui_address is not None
        yield server, Visitor(int(server.ui_address.rpartition(":")[2]))
    finally:
        await server.stop()


async def new_key(server: Server, role: str, namespace: str = "default", name: str = "someone") -> str:
    """An API key for a role in a namespace; temporal-system stands for all."""
    caller = new_caller(with_secret(SECRET))
    try:
        request = CreateKeyRequest(name, namespace, role)
        return (await caller.call(server.address, CREATE_KEY, request, timeout_s=10)).key
    finally:
        await caller.close()
