"""Order of the tests on several worker processes: what must stay together, and what must begin first."""

from collections.abc import Callable, Container, Sequence
from itertools import chain
from typing import TypeVar

Test = TypeVar("Test")

# Files with the longest tests, the longest first. A long test that begins last would leave the other workers without
# work. Files with tests of a shared Spark session need not be here: they begin first.
SLOWEST = (
    "tests/cli/test_demo.py",
    "tests/sdk/test_three_hosts.py",
    "tests/ui/test_official_pages.py",
    "tests/matching/test_killed_hosts.py",
    "tests/pipeline/test_worker.py",
    "tests/pipeline/test_interrupted.py",
    "tests/pipeline/public_export/test_export.py",
    "tests/sdk/test_durability.py",
    "tests/sdk/test_concurrency.py",
    "tests/sdk/test_memory.py",
    "tests/journal/test_server.py",
    "tests/data_centers/test_bad_peers.py",
    "tests/data_centers/test_many_hosts.py",
    "tests/docs/test_examples.py",
    "tests/testing/test_testing.py",
    "tests/docs/test_operations.py",
    "tests/core/fairness/test_interleavings.py",
    "tests/simulators/replication/test_planted.py",
    "tests/simulators/matching/test_simulation.py",
    "tests/docs/test_partition_counts.py",
    "tests/docs/test_security.py",
    "tests/storage/test_postgres.py",
    "tests/storage/test_sqlite_kill.py",
    "tests/server/test_promised_metrics.py",
)


# Workers that begin with the files that need Spark, if as many others are left: these files take a third of all time.
SPARK_WORKERS = 2


def schedule(
    tests: Sequence[Test],
    workers: int,
    *,
    file_of: Callable[[Test], str],
    fixtures_of: Callable[[Test], Container[str]],
) -> list[Test]:
    """Order tests for pytest-xdist's scheduler `worksteal`, which cuts the list into one piece for each worker.

    The first pieces begin with the files that need Spark, so that few workers start and warm up Spark; the files that
    share one run of all jobs are in one piece. The other pieces begin with the slowest files. A worker without work
    takes tests from the end of another's piece, so a file at the beginning of a piece stays with one worker, which sets
    up its module fixtures once.
    """
    files: dict[str, list[Test]] = {}
    for test in tests:
        files.setdefault(file_of(test), []).append(test)

    def files_with(fixture: str) -> list[str]:
        return [file for file, its in files.items() if any(fixture in fixtures_of(test) for test in its)]

    on_spark, on_run = files_with("spark"), files_with("run")
    slow = [file for file in SLOWEST if file in files and file not in on_spark]
    others = [file for file in files if file not in {*on_spark, *slow}]
    split = [file for file in on_spark if file not in on_run]
    with_spark = min(SPARK_WORKERS, workers // 2)
    without = workers - with_spark
    first = [split[number::with_spark] for number in range(with_spark)]
    first[-1] = [*on_run, *first[-1]]
    first += [slow[number::without] for number in range(without)]
    pieces = [list(chain.from_iterable(files[file] for file in piece)) for piece in first]
    rest = [test for file in others for test in files[file]]
    size = -(-len(tests) // workers)
    for piece in pieces[:-1]:
        missing = max(0, size - len(piece))
        piece.extend(rest[:missing])
        del rest[:missing]
    return [*chain.from_iterable(pieces), *rest]
