import errno
import os
import socket

import pytest

from fairlead.telemetry import refusal


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EADDRINUSE, "stop what listens there, or choose another `listen`"),
        (errno.EADDRNOTAVAIL, "this machine has no such address, so give one of its own as `listen`"),
        (errno.EACCES, "only root may listen there, so choose a port above 1023 as `listen`"),
        (errno.ENOBUFS, "choose another `listen`"),
    ],
)
def test_the_advice_matches_the_error(number: int, advice: str) -> None:
    assert refusal(OSError(number, "in other words"), key="listen") == f"{os.strerror(number)}; {advice}"


def test_an_unknown_host_name_is_reported_as_such() -> None:
    said = refusal(socket.gaierror(-2, "Name or service not known"), key="metrics.listen")
    assert (
        said == "Name or service not known; the name stands for no address, so write an IP address as `metrics.listen`"
    )
