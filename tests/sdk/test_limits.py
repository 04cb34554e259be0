"""Both servers behave the same at their limits, with the same dynamic settings."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.sdk.limit_cases import CASES, SETTINGS, Bench
from tests.sdk.observe import connect
from tests.sdk.servers import KINDS, serving

CASE_S_MAX = 20.0
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# This limit differs: the reference accepts task completions up to 40 MiB, Fairlead messages up to 4 MiB.
_OWN = re.compile(r"'workflowTaskCompletionSizeLimitError': '\d+'")


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    with (
        serving("reference", Path(folders["reference"]), SETTINGS) as reference,
        serving("fairlead", Path(folders["fairlead"]), SETTINGS) as ours,
    ):
        yield {"reference": reference, "fairlead": ours}


async def seen(address: str, name: str) -> str:
    client: Client = await connect(address)
    async with asyncio.timeout(CASE_S_MAX):
        found: Any = await CASES[name](Bench(client, name))
    return _OWN.sub("", _UUID.sub("<id>", repr(found)))


@pytest.mark.parametrize("name", CASES)
async def test_a_limit_is_the_same_on_both_servers(name: str, addresses: dict[str, str]) -> None:
    reference, ours = [await seen(addresses[kind], name) for kind in ("reference", "fairlead")]
    assert ours == reference
