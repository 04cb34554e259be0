"""With the codec of docs/security.md, and with `journal.payloads`, nothing private reaches the server's files."""

import base64
import re
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from temporalio import activity, workflow
from temporalio.api.history.v1 import History
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.history.shard.outline import SIZE_KEY
from fairlead.journal import read_segment
from fairlead.server import Server
from fairlead.settings.static.config import Address, JournalConfig, JournalPayloads, SqliteConfig, StaticConfig

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
PRIVATE = "4111-1111-1111-1111"
QUEUE = "private"


@activity.defn
async def charge(card: str) -> str:
    activity.heartbeat(card)
    raise ApplicationError(f"refused: {card}", card)


@workflow.defn
class Payment:
    @workflow.run
    async def run(self, card: str) -> str:
        workflow.upsert_memo({"card": card})
        await workflow.wait_condition(lambda: self.is_signaled)
        await workflow.execute_activity(
            charge,
            card,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        return card

    def __init__(self) -> None:
        self.is_signaled = False

    @workflow.signal
    def go(self, _card: str) -> None:
        self.is_signaled = True


@asynccontextmanager
async def serving(folder: Path, payloads: JournalPayloads) -> AsyncIterator[str]:
    server = Server(
        StaticConfig(
            frontend_listen=Address("127.0.0.1", 0),
            listen=Address("127.0.0.1", 0),
            store=SqliteConfig(folder / "server.db"),
            journal=JournalConfig(folder / "journal", payloads),
            hand_over_s=0.0,
            grace_s=0.0,
        )
    )
    await server.start()
    try:
        assert server.frontend_address is not None
        yield server.frontend_address
    finally:
        await server.stop()


async def pay(address: str, converter: DataConverter) -> None:
    client = await Client.connect(address, data_converter=converter)
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Payment],
        activities=[charge],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        handle = await client.start_workflow(Payment.run, PRIVATE, id="payment", task_queue=QUEUE)
        await handle.signal(Payment.go, PRIVATE)
        with pytest.raises(WorkflowFailureError):
            await handle.result()


def journaled(folder: Path) -> list[dict[str, Any]]:
    return [record for path in sorted(folder.rglob("history.v1.*")) for record in read_segment(path)]


def everything(folder: Path) -> bytes:
    """All files of the server, with the journal's records and their events decoded."""
    files = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    records = journaled(folder)
    events = [base64.b64decode(record[name]) for record in records for name in ("payload", "outline") if name in record]
    return files + repr(records).encode() + b"".join(events)


def codec_of_the_page(key: bytes) -> DataConverter:
    """The converter of the example in docs/security.md."""
    block = re.search(r"```python\n# blind\.py\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    module: Any = types.ModuleType("blind")
    exec(block[1], module.__dict__)  # noqa: S102 - an example of this repository
    converter = module.data_converter(key)
    assert isinstance(converter, DataConverter)
    return converter


async def test_a_codec_keeps_the_server_blind(tmp_path: Path) -> None:
    async with serving(tmp_path, JournalPayloads.WHOLE) as address:
        await pay(address, codec_of_the_page(Fernet.generate_key()))
    assert PRIVATE.encode() not in everything(tmp_path)


async def test_without_a_codec_the_store_has_the_payload_and_the_journal_with_keys_only_failure_messages(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, JournalPayloads.KEYS) as address:
        await pay(address, DataConverter.default)
    assert PRIVATE.encode() in (tmp_path / "server.db").read_bytes()
    outlines = [History.FromString(base64.b64decode(record["outline"])) for record in journaled(tmp_path)]
    events = [event for outline in outlines for event in outline.events]
    (started,) = events[0].workflow_execution_started_event_attributes.input.payloads
    assert (started.data, dict(started.metadata)) == (
        b"",
        {"encoding": b"json/plain", SIZE_KEY: str(len(PRIVATE) + 2).encode()},
    )
    private = [event for event in events if PRIVATE.encode() in event.SerializeToString()]
    # The activity's failure and the workflow's, in whose causes the message stands, as docs/security.md says.
    assert [event.WhichOneof("attributes") for event in private] == [
        "activity_task_failed_event_attributes",
        "workflow_execution_failed_event_attributes",
    ]
