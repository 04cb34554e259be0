"""Checks that the payloads of journaled batches match their records."""

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

_COLUMNS = ("run_id", "first_event_id", "event_digests", "event_types", "signals")


def with_payload_faults(history: DataFrame) -> DataFrame:
    """Add `payload_fault` to each batch; null if the payload or outline matches the record, or if the batch has
    neither.

    Call this before any shuffle, so that payloads are not moved.
    """
    events = F.coalesce("payload", "outline")
    if history.where(events.isNotNull()).limit(1).isEmpty():
        return history.withColumn("payload_fault", F.lit(None).cast("string"))
    faults = arrow_udf(_faults, "string")  # type: ignore[call-overload] # Arrow's arrays have no types.
    return history.withColumn("payload_fault", faults(events, F.col("payload").isNull(), *_COLUMNS))


def _faults(  # noqa: PLR0917 - the columns of a row
    payloads: pa.Array,
    outlined: pa.Array,
    run_ids: pa.Array,
    firsts: pa.Array,
    digests: pa.Array,
    types: pa.Array,
    signals: pa.Array,
) -> pa.Array:
    # This import loads Temporal's API in the worker, only if payloads were journaled.
    from fairlead.pipeline.kernels.reconcile.payloads import payload_fault  # noqa: PLC0415

    faults = [
        payload_fault(
            payload.as_py(),
            run_id=run_id.as_py(),
            first_event_id=first.as_py(),
            digests=digest.as_py(),
            types=kinds.as_py(),
            signals=signal.as_py(),
            is_outline=is_outline.as_py(),
        )
        for payload, is_outline, run_id, first, digest, kinds, signal in zip(
            payloads, outlined, run_ids, firsts, digests, types, signals, strict=True
        )
    ]
    return pa.array(faults, pa.string())
