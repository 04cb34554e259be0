"""Failures that are too large to be recorded are shortened."""

from temporalio.api.failure.v1 import Failure

from fairlead.frontend.handlers.oversize import CAUSES_MAX, FAILURE_TOO_LARGE, KEPT_BYTES_MAX, too_large


def test_the_message_is_cut_at_the_limit() -> None:
    kept = too_large(FAILURE_TOO_LARGE, Failure(message="x" * 3001), bytes_max=2500)
    assert (kept.message, kept.server_failure_info.non_retryable) == (FAILURE_TOO_LARGE, True)
    assert kept.cause == Failure(message="x" * 2500)


def test_the_kind_of_a_failure_is_kept_in_preference_to_its_texts() -> None:
    failure = Failure(message="x" * 3001, stack_trace="y" * 10)
    failure.application_failure_info.type = "Bad"
    failure.application_failure_info.non_retryable = True
    cause = too_large(FAILURE_TOO_LARGE, failure, bytes_max=2500).cause
    assert (cause.application_failure_info.type, cause.application_failure_info.non_retryable) == ("Bad", True)
    assert (cause.message, cause.stack_trace) == ("x" * (2500 - 3 - 4 - 8), "")


def test_causes_are_kept_up_to_the_size_limit_and_the_depth_limit() -> None:
    failure = Failure(message="last")
    for number in range(CAUSES_MAX + 5):
        failure = Failure(message=str(number), cause=failure)
    kept, depth = too_large(FAILURE_TOO_LARGE, failure).cause, 0
    while kept.HasField("cause"):
        kept, depth = kept.cause, depth + 1
    assert depth == CAUSES_MAX
    failure = Failure(message="x" * 100, cause=Failure(message="y" * 100, cause=Failure(message="z" * 100)))
    kept = too_large(FAILURE_TOO_LARGE, failure, bytes_max=150).cause
    assert kept.cause.message == "y" * (150 - 100 - 4 - 4)
    assert not kept.cause.HasField("cause")


def test_a_shortened_failure_is_within_the_limit_and_valid_utf_8() -> None:
    failure = Failure(message="ä" * KEPT_BYTES_MAX, source="ö" * 1000, stack_trace="ü" * KEPT_BYTES_MAX)
    for bytes_max in (1000, 1001, KEPT_BYTES_MAX, 10 * KEPT_BYTES_MAX):
        cause = too_large(FAILURE_TOO_LARGE, failure, bytes_max=bytes_max).cause
        assert cause.ByteSize() <= min(bytes_max, KEPT_BYTES_MAX) + 8
        assert set(cause.message) <= {"ä"}
