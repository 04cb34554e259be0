"""Tables published to an S3-compatible server: moto, over HTTP on loopback."""

import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from fairlead.pipeline.erasure import Target, erase_from_delta, erase_from_iceberg, erase_from_lake
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.publish import DeltaPlace, IcebergPlace
from tests.patience import until
from tests.pipeline.upkeep.lakes import commit, rows, tasks
from tests.ports import free_port

BUCKET = "bucket"
COLUMNS = "time_us, kind, namespace_id, segment, position, cluster, day"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with a bucket, named by the usual variables."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    given = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            asyncio.run(until(lambda: _create(f"{address}/{BUCKET}")))
            yield address
        finally:
            server.terminate()


def _create(bucket: str) -> bool:
    try:
        request = urllib.request.Request(bucket, method="PUT")  # noqa: S310 - our own server
        with urllib.request.urlopen(request) as done:  # noqa: S310
            return bool(done.status == 200)
    except OSError:
        return False


@pytest.mark.usefixtures("endpoint")
def test_tables_in_a_bucket_have_the_rows_of_the_lake_and_lose_erased_ones(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    delta = DeltaPlace(f"s3://{BUCKET}/delta")
    iceberg = IcebergPlace(f"sqlite:///{tmp_path}/catalog.db", f"s3://{BUCKET}/iceberg")

    def check() -> None:
        for place in (delta, iceberg):
            place.publish(lake, "task")
        published = {
            "delta": DeltaTable(f"{delta.url}/task").to_pyarrow_table(),
            "iceberg": iceberg.open().load_table((iceberg.namespace, "task")).scan().to_arrow(),
        }
        for table in published.values():
            with duckdb.connect() as connection:
                connection.register("published", table)
                found = connection.execute(f"SELECT {COLUMNS} FROM published ORDER BY ALL").fetchall()
            assert found == rows(lake.root, "task", COLUMNS)

    commit(lake, "task", tasks(3))
    check()
    commit(lake, "task", [*tasks(2), *(row | {"namespace_id": "bank"} for row in tasks(2))])
    check()
    with lake.locked():
        erase_from_lake(lake, Target(namespaces=frozenset({"bank"})))
    # The file with the erased rows, and its copy in the published table's earlier version.
    assert erase_from_delta(lake, delta) == {"task": 1}
    assert erase_from_iceberg(lake, iceberg)["task"] > 1
    check()
    assert len(rows(lake.root, "task")) == 5
