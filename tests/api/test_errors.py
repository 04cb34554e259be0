"""API errors cross between hosts and clusters as the same class, with message and details."""

import subprocess
import sys

import pytest
from temporalio.api.errordetails.v1 import NotFoundFailure, QueryFailedFailure

from fairlead.api.error_details import already_started, namespace_not_found, packed
from fairlead.api.errors import API_ERRORS, ApiError, Gone, NotFound
from fairlead.replication.wire import ERRORS
from fairlead.rpc.hosts.wire import Errors
from fairlead.server.workflows import HISTORY_ERRORS

REGISTRIES = [Errors(HISTORY_ERRORS), ERRORS]


@pytest.mark.parametrize("errors", REGISTRIES, ids=["hosts", "clusters"])
@pytest.mark.parametrize("known", API_ERRORS)
def test_every_class_crosses_with_message_and_details(errors: Errors, known: type[ApiError]) -> None:
    for sent in (known("m: ü"), known("m", packed(QueryFailedFailure())), known("m", b"")):
        back = errors.decode(errors.encode(sent))
        assert isinstance(back, ApiError)
        assert (type(back), str(back), back.detail) == (known, str(sent), sent.detail)


def test_errors_with_temporals_details_cross_with_them() -> None:
    errors = REGISTRIES[0]
    for sent in (NotFound("m"), namespace_not_found("n"), already_started("m", request_id="request", run_id="run")):
        back = errors.decode(errors.encode(sent))
        assert isinstance(back, ApiError)
        assert (type(back), back.detail) == (type(sent), sent.detail)
        assert back.detail


def test_an_object_that_is_not_found_has_temporals_detail() -> None:
    for known in (NotFound, Gone):
        assert known("m").detail == packed(NotFoundFailure())


def test_the_classes_and_their_codes_load_without_temporals_messages() -> None:
    """A host with only the matching role does not need them, and they load slowly."""
    code = "import sys; import fairlead.api.codes; print('temporalio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "False"
