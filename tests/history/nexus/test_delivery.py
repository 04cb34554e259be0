"""Delivery of completion callbacks: a token that somebody made up tells nothing about another namespace."""

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.common.v1 import Callback, Payload
from temporalio.api.failure.v1 import Failure

from fairlead.api.errors import Gone, NotFound
from fairlead.history.nexus.callbacks import SYSTEM_URL, TOKEN_HEADER, CallbackToken, encode_token
from fairlead.history.nexus.delivery import deliver
from fairlead.history.state.errors import NotPending


async def message_of(error: Exception, *, namespace_id: str, is_standalone: bool) -> str:
    class History:
        async def call(self, *_: object) -> bytes:
            raise error

    context: Any = SimpleNamespace(
        namespace=SimpleNamespace(id="own"), services=SimpleNamespace(history=History(), clock_ns=lambda: 1)
    )
    token = CallbackToken(namespace_id, "order-1", "run", 0 if is_standalone else 5, "guess", is_standalone)
    callback = Callback(nexus=Callback.Nexus(url=SYSTEM_URL, header={TOKEN_HEADER: encode_token(token)}))
    progress = await deliver(context, callback, started_ns=0, link=None, result=Payload(), failure=None)
    assert progress.failure is not None
    return Failure.FromString(progress.failure).message


@pytest.mark.parametrize("is_standalone", [True, False])
async def test_the_outcome_does_not_depend_on_what_exists_in_another_namespace(is_standalone: bool) -> None:
    missing = (
        NotFound("Namespace other is not found."),
        NotFound("workflow not found for ID: order-1"),
        Gone("workflow execution already completed"),
        NotPending("operation not found"),
    )
    told = {await message_of(each, namespace_id="other", is_standalone=is_standalone) for each in missing}
    assert told == {"handler error (NOT_FOUND): operation not found"}
    # Callers may read their own namespace, so these errors keep their messages.
    own = {await message_of(each, namespace_id="own", is_standalone=False) for each in missing}
    assert len(own) == 4
