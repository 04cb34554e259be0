"""Replaces responses that are too large to be recorded by a small failure."""

from temporalio.api.failure.v1 import Failure

BLOB_TOO_LARGE = "Blob data size exceeds limit."
HEARTBEAT_TOO_LARGE = "Heartbeat details exceed size limit."
RESULT_TOO_LARGE = "Complete result exceeds size limit."
CANCEL_DETAILS_TOO_LARGE = "Cancel details exceed size limit."
FAILURE_TOO_LARGE = "Failure exceeds size limit."
# Maximum bytes kept of an oversized failure, as the cause of its replacement; fewer if the limit is lower.
KEPT_BYTES_MAX = 512 * 1024
# Maximum number of nested causes kept of a failure.
CAUSES_MAX = 20
# Bytes counted for the tag and length of a field, and for the message with the kind of failure.
_FIELD_BYTES = 4
_KIND_BYTES = 8


def too_large(message: str, failure: Failure | None = None, *, bytes_max: int = KEPT_BYTES_MAX) -> Failure:
    """The failure to record instead; not retryable, since a retry would be as large again."""
    instead = Failure(message=message)
    instead.server_failure_info.non_retryable = True
    if failure is not None:
        instead.cause.CopyFrom(_shortened(failure, min(bytes_max, KEPT_BYTES_MAX), CAUSES_MAX))
    return instead


def _shortened(failure: Failure, bytes_max: int, causes_max: int) -> Failure:
    """Keep a failure's kind and the beginnings of its strings, in the order of Temporal's server, then its causes."""
    left = bytes_max

    def cut(text: str) -> str:
        nonlocal left
        kept = text.encode()[: max(0, left)].decode(errors="ignore")
        left -= len(kept.encode()) + (_FIELD_BYTES if kept else 0)
        return kept

    kept = Failure()
    if failure.HasField("application_failure_info"):
        kept.application_failure_info.type = cut(failure.application_failure_info.type)
        kept.application_failure_info.non_retryable = failure.application_failure_info.non_retryable
        left -= _KIND_BYTES
    elif failure.HasField("server_failure_info"):
        kept.server_failure_info.non_retryable = failure.server_failure_info.non_retryable
        left -= _FIELD_BYTES
    kept.source, kept.message, kept.stack_trace = (
        cut(failure.source),
        cut(failure.message),
        cut(failure.stack_trace),
    )
    if failure.HasField("cause") and causes_max > 0 and left > _FIELD_BYTES:
        kept.cause.CopyFrom(_shortened(failure.cause, left - _FIELD_BYTES, causes_max - 1))
    return kept
