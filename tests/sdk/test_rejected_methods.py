"""The methods that docs/compatibility.md calls rejected or off by default get the same errors from the reference."""

from pathlib import Path

from fairlead.frontend.compatibility import Outcome
from fairlead.testing import FairleadServer
from fairlead.testing.compatibility import outcomes_at
from tests.sdk.observe import connect
from tests.sdk.servers import serving


async def test_both_servers_reject_the_same_methods_with_the_same_errors(tmp_path: Path) -> None:
    with serving("reference", tmp_path) as address:
        await connect(address)
        reference = await outcomes_at(address)
    async with FairleadServer.start() as server:
        ours = await outcomes_at(server.address)
    assert rejections(ours) == rejections(reference)


def rejections(outcomes: dict[str, Outcome]) -> dict[str, str]:
    return {name: outcome.error for name, outcome in outcomes.items() if outcome.error}
