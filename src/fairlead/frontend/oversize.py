"""What becomes of an answer that is too large to be recorded: a failure, which is small."""

from temporalio.api.failure.v1 import Failure

BLOB_TOO_LARGE = "Blob data size exceeds limit."
HEARTBEAT_TOO_LARGE = "Heartbeat details exceed size limit."
RESULT_TOO_LARGE = "Complete result exceeds size limit."
CANCEL_DETAILS_TOO_LARGE = "Cancel details exceed size limit."
FAILURE_TOO_LARGE = "Failure exceeds size limit."
# So much of a failure that is too large is kept, as the cause of the other.
KEPT_BYTES_MAX = 512 * 1024


def too_large(message: str, failure: Failure | None = None) -> Failure:
    """The failure that is recorded instead; nothing is tried again, as it would be as large again."""
    instead = Failure(message=message)
    instead.server_failure_info.non_retryable = True
    if failure is not None:
        instead.cause.CopyFrom(_shortened(failure))
    return instead


def _shortened(failure: Failure) -> Failure:
    """The beginning of the failure's texts, and of what kind it is."""
    kept = Failure(source=_cut(failure.source, KEPT_BYTES_MAX // 4), message=_cut(failure.message, KEPT_BYTES_MAX // 4))
    if failure.HasField("application_failure_info"):
        kept.application_failure_info.type = _cut(failure.application_failure_info.type, KEPT_BYTES_MAX // 4)
        kept.application_failure_info.non_retryable = failure.application_failure_info.non_retryable
    # Lengths and tags take a few bytes as well.
    kept.stack_trace = _cut(failure.stack_trace, KEPT_BYTES_MAX - kept.ByteSize() - 16)
    return kept


def _cut(text: str, bytes_max: int) -> str:
    data = text.encode()
    return text if len(data) <= bytes_max else data[:bytes_max].decode(errors="ignore")
