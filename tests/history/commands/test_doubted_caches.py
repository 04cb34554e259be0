"""A worker's cache may hold events that have lost: its first response after a failover is rejected."""

from fairlead.history.commands.completion import TRUSTED_CACHES_MAX
from tests.history.scenario import Scenario, timer


def cached_in(name: str) -> dict[str, object]:
    return {"sticky_attributes": {"worker_task_queue": {"name": name}}}


def failed_over(version: int) -> Scenario:
    scenario = Scenario()
    assert not scenario.work(timer("first", 100), **cached_in("cache")).doubted
    scenario.version = version
    scenario.signal()
    return scenario


def test_without_a_failover_no_cache_is_doubted() -> None:
    scenario = Scenario()
    for number in range(3):
        assert not scenario.work(timer(str(number), 100), **cached_in(f"cache {number}")).doubted
        scenario.signal()


def test_the_first_sticky_response_after_a_failover_is_refused_and_the_second_accepted() -> None:
    scenario = failed_over(2)
    before = len(scenario.history)
    assert scenario.work(timer("second", 100), **cached_in("cache")).doubted
    assert scenario.types(before) == ["WORKFLOW_TASK_STARTED", "WORKFLOW_TASK_FAILED", "WORKFLOW_TASK_SCHEDULED"]
    assert set(scenario.state.timers) == {"first"}
    assert not scenario.work(timer("second", 100), **cached_in("cache")).doubted
    assert set(scenario.state.timers) == {"first", "second"}


def test_each_worker_is_doubted_once_and_again_after_the_next_failover() -> None:
    scenario = failed_over(2)
    doubts = []
    for version, cache in ((2, "one"), (2, "one"), (2, "two"), (2, "two"), (2, "one"), (11, "one"), (11, "one")):
        if scenario.version != version:
            scenario.version = version
        if scenario.state.workflow_task is None:
            scenario.signal()
        doubts.append(scenario.work(**cached_in(cache)).doubted)
    assert doubts == [True, False, True, False, False, True, False]


def test_a_worker_without_a_cache_is_not_doubted() -> None:
    scenario = failed_over(2)
    assert not scenario.work(timer("second", 100)).doubted


def test_the_number_of_doubted_caches_is_bounded() -> None:
    scenario = failed_over(2)
    for number in range(TRUSTED_CACHES_MAX + 5):
        assert scenario.work(**cached_in(f"cache {number}")).doubted
    assert len(scenario.state.live.trusted_caches) == TRUSTED_CACHES_MAX
    assert not scenario.work(**cached_in(f"cache {TRUSTED_CACHES_MAX + 4}")).doubted
