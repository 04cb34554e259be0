"""The audit as a Spark table."""

from pathlib import Path

import zstandard
from pyspark.sql import SparkSession

from fairlead.journal import AuditRecord, encode_records
from fairlead.pipeline.sources.audit import audit_table
from tests.pipeline.journals import task_records, write_segment


def test_the_audit_is_a_table_of_all_clusters(spark: SparkSession, tmp_path: Path) -> None:
    records = [
        AuditRecord(
            time_us=1_767_225_600_000_000,
            method="temporal.api.workflowservice.v1.WorkflowService/UpdateNamespace",
            host="host-1",
            is_allowed=allowed,
            principal_kind="api-key",
            principal="alice",
            namespace="orders",
            reason="" if allowed else "the role does not suffice",
        )
        for allowed in (True, False)
    ]
    content = zstandard.ZstdCompressor(write_checksum=True).compress(encode_records(records))
    write_segment(tmp_path, content, kind="audit")
    write_segment(tmp_path, content, kind="audit", cluster="beta")
    write_segment(tmp_path, task_records(5))
    table = audit_table(spark, tmp_path)
    assert table.where("fault IS NOT NULL").isEmpty()
    found = table.where("NOT is_allowed").orderBy("cluster").collect()
    assert [(row.cluster, row.principal, row.namespace, row.reason) for row in found] == [
        (cluster, "alice", "orders", "the role does not suffice") for cluster in ("alpha", "beta")
    ]
    assert {str(row.time) for row in found} == {"2026-01-01 00:00:00"}
