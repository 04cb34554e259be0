"""Requests to Nexus handlers: their timeout and their retries."""

from temporalio.api.failure.v1 import Failure

from fairlead.api.times import SECOND_NS

# Maximum nanoseconds for the response to a request, including the time until a worker takes the request.
CALL_NS_MAX = 8 * SECOND_NS
_RETRY_FIRST_NS = SECOND_NS
_RETRY_NS_MAX = 3600 * SECOND_NS
# Random part of a backoff, so that operations which failed together are not retried together.
_JITTER = 0.2
FAILURE_BYTES_MAX = 4096


def backoff_ns(failed: int, uniform: float) -> int:
    """Nanoseconds until the retry after `failed` failed requests; `uniform` is a random number from 0 to 1."""
    longest_ns = min(_RETRY_FIRST_NS << min(failed - 1, 32), _RETRY_NS_MAX)
    return int(longest_ns * (1 - _JITTER * uniform))


def kept_failure(failure: Failure) -> Failure:
    """The failure of a request, truncated to the size that a state may hold."""
    if failure.ByteSize() <= FAILURE_BYTES_MAX:
        return failure
    kept = Failure(message=failure.message[: FAILURE_BYTES_MAX // 8])
    if failure.HasField("nexus_handler_failure_info"):
        kept.nexus_handler_failure_info.retry_behavior = failure.nexus_handler_failure_info.retry_behavior
        kept.nexus_handler_failure_info.type = failure.nexus_handler_failure_info.type[: FAILURE_BYTES_MAX // 8]
    return kept
