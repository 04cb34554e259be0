"""One host of the matching service that records the tasks it starts: `python killed_host_child.py DSN FILE`."""

import asyncio
import os
import sys
from pathlib import Path

from fairlead.server import Server
from fairlead.settings import Plain
from fairlead.settings.static.config import Address, PostgresConfig, Role, StaticConfig


async def main(dsn: str, file: Path) -> None:
    # Unbuffered: a kill of this process loses no written line, and each line is written in one call.
    started = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def start(payload: bytes, _identity: str, _worker: bytes) -> bytes:
        os.write(started, payload + b"\n")
        return payload

    config = StaticConfig(
        listen=Address("127.0.0.1", 0),
        roles=frozenset({Role.MATCHING}),
        store=PostgresConfig(dsn),
        hand_over_s=0.5,
    )
    overrides: dict[str, Plain] = {
        "matching.numTasklistReadPartitions": 6,
        "matching.numTasklistWritePartitions": 6,
        "system.membershipHeartbeatInterval": "200ms",
        "system.membershipExpiry": "1500ms",
    }
    server = Server(config, overrides=overrides, start_task=start)
    await server.start()
    print(server.address, flush=True)  # noqa: T201 - its parent waits for it
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
