"""Writes numbers to a journal until it is killed, and prints each number that is safely stored."""

import asyncio
import sys
from pathlib import Path

from fairlead.journal import Journal, TaskRecord
from fairlead.settings import DynamicSettings
from fairlead.telemetry import Metrics


def record(number: int) -> TaskRecord:
    return TaskRecord(number, "added", "ns", "orders", 2, 0, "host")


async def main(folder: Path, first: int) -> None:
    settings = DynamicSettings(
        overrides={"journal.flushInterval": "10ms", "journal.segmentBytes": 4096, "journal.segmentInterval": "100ms"}
    )
    journal = await Journal.open(folder, cluster="c", host="host", settings=settings, metrics=Metrics())
    queue = journal.history(record)
    for begin in range(first, first + 1_000_000, 10):
        await queue.write(range(begin, begin + 10), 100)
        sys.stdout.write(f"{begin + 9}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
