import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

# Imported late, when the server starts: the sandbox of Temporal's SDK imports a workflow's file again with everything
# that it imports, and a test in the same file must not load a whole server there.
if TYPE_CHECKING:
    from temporalio.client import Client

    from fairlead.settings import Plain

# Seconds for open calls to end at stop: short, since the test is over.
GRACE_S = 1.0
NAMESPACE = "default"


class FairleadServer:
    """A running server, for tests.

    `start` runs the server in the test's event loop, which starts fastest and can be stepped through with a debugger.
    `start_process` runs it in a child process, which continues while the test blocks its loop, and which many loops can
    use. Both choose a free port. Their options:

    - `namespace`: the namespace that `connect` uses. `other_namespaces` and "default" exist as well.
    - `search_attributes`: types by name, for example {"Customer": "Keyword"}, in all of these namespaces.
    - `db_filename`: a SQLite file for all data; without it, data is in memory and lost at the end.
    - `dynamic_config`: dynamic settings by key, see docs/settings.md.
    """

    def __init__(self, address: str, namespace: str) -> None:
        """Use `start`, `start_process` or `run_process`."""
        self.address = address
        self.namespace = namespace

    async def connect(self, **options: Any) -> "Client":
        """Connect a client of Temporal's Python SDK; `options` are those of `Client.connect`."""
        # Imported late: the SDK takes a while to load, and tests with another SDK don't need it.
        from temporalio.client import Client  # noqa: PLC0415

        return await Client.connect(self.address, **{"namespace": self.namespace, **options})

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        *,
        namespace: str = NAMESPACE,
        other_namespaces: Sequence[str] = (),
        search_attributes: Mapping[str, str] | None = None,
        db_filename: Path | str | None = None,
        dynamic_config: "Mapping[str, Plain] | None" = None,
    ) -> AsyncIterator[Self]:
        """Run a server in this event loop until the block ends.

        async with FairleadServer.start() as server:
            client = await server.connect()
        """
        from fairlead.server import Server  # noqa: PLC0415
        from fairlead.settings.static.config import (  # noqa: PLC0415
            Address,
            MemoryConfig,
            NamespaceConfig,
            SqliteConfig,
            StaticConfig,
        )
        from fairlead.settings.static.namespaces import parse_namespace_name, parse_search_attributes  # noqa: PLC0415

        any_port = Address("127.0.0.1", 0)
        attributes = parse_search_attributes(dict(search_attributes or {}))
        names = dict.fromkeys([NAMESPACE, namespace, *other_namespaces])
        config = StaticConfig(
            frontend_listen=any_port,
            listen=any_port,
            store=MemoryConfig() if db_filename is None else SqliteConfig(Path(db_filename)),
            namespaces=tuple(
                NamespaceConfig(parse_namespace_name(name), search_attributes=attributes) for name in names
            ),
            hand_over_s=0.0,
            grace_s=GRACE_S,
        )
        server = Server(config, overrides=dynamic_config)
        await server.start()
        try:
            assert server.frontend_address is not None  # noqa: S101 - it has all roles
            yield cls(server.frontend_address, namespace)
        finally:
            await server.stop()

    @classmethod
    @asynccontextmanager
    async def start_process(
        cls,
        *,
        namespace: str = NAMESPACE,
        other_namespaces: Sequence[str] = (),
        search_attributes: Mapping[str, str] | None = None,
        db_filename: Path | str | None = None,
        dynamic_config: "Mapping[str, Plain] | None" = None,
    ) -> AsyncIterator[Self]:
        """Run a server in a child process until the block ends; the event loop is free while it starts and stops."""
        running = cls.run_process(
            namespace=namespace,
            other_namespaces=other_namespaces,
            search_attributes=search_attributes,
            db_filename=db_filename,
            dynamic_config=dynamic_config,
        )
        server = await asyncio.to_thread(running.__enter__)
        try:
            yield server
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)

    @classmethod
    @contextmanager
    def run_process(
        cls,
        *,
        namespace: str = NAMESPACE,
        other_namespaces: Sequence[str] = (),
        search_attributes: Mapping[str, str] | None = None,
        db_filename: Path | str | None = None,
        dynamic_config: "Mapping[str, Plain] | None" = None,
    ) -> Iterator[Self]:
        """Like `start_process`, without an event loop: for a fixture that outlives an event loop."""
        from fairlead.testing.child import child  # noqa: PLC0415

        with child(
            namespaces=[namespace, *other_namespaces],
            search_attributes=search_attributes or {},
            db_filename=None if db_filename is None else Path(db_filename),
            dynamic_config=dynamic_config or {},
        ) as address:
            yield cls(address, namespace)
