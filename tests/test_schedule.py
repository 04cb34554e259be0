"""The order of the tests keeps files together, begins with the slowest, and loses no test."""

from pathlib import Path

import pytest

from tests.schedule import SLOWEST, schedule

PROJECT = Path(__file__).parent.parent
QUICK = [f"tests/test_{number}.py::test_{case}" for number in range(20) for case in range(5)]
SPARK = [f"tests/pipeline/test_{name}.py::test_{case}" for name in "wxyz" for case in range(3)]
W, X, Y, Z = (SPARK[3 * number : 3 * number + 3] for number in range(4))
SLOW = [f"{file}::test_{case}" for file in SLOWEST[:4] for case in range(2)]


def fixtures_of(test: str) -> tuple[str, ...]:
    if test in (*W, *Z):
        return ("spark", "run")
    return ("spark",) if test in (X[1], *Y) else ()


def ordered(workers: int) -> list[str]:
    return schedule(
        [*QUICK, *SPARK, *SLOW],
        workers,
        file_of=lambda test: test.partition("::")[0],
        fixtures_of=fixtures_of,
    )


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_every_test_is_scheduled_once(workers: int) -> None:
    assert sorted(ordered(workers)) == sorted([*QUICK, *SPARK, *SLOW])


def test_the_files_that_need_spark_begin_the_first_workers_piece() -> None:
    assert ordered(3)[: len(SPARK)] == [*W, *Z, *X, *Y]


def test_two_of_four_workers_share_the_files_that_need_spark_and_one_has_all_with_the_run_of_all_jobs() -> None:
    tests = ordered(4)
    size = -(-len(tests) // 4)
    assert tests[:3] == X
    assert tests[size : size + 3 * 3] == [*W, *Z, *Y]


def test_the_slowest_files_begin_the_other_workers_pieces() -> None:
    tests = ordered(3)
    size = -(-len(tests) // 3)
    first, second, third, fourth = (SLOW[2 * number : 2 * number + 2] for number in range(4))
    assert tests[size : size + 4] == [*first, *third]
    assert tests[2 * size : 2 * size + 4] == [*second, *fourth]


def test_every_file_of_the_slowest_exists() -> None:
    assert [file for file in SLOWEST if not (PROJECT / file).is_file()] == []
