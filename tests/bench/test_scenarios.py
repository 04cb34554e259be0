from dataclasses import fields

import pytest

from fairlead.bench.plan import POLL_TIMEOUT_S
from fairlead.bench.scenarios import NOT_OFFERED, SCENARIOS, Scenario, UnknownScenario, find_scenario
from fairlead.bench.schedule import Phase
from fairlead.core.balancing import Strategy
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic import matching

# FL-77: how each scenario of Cadence's matching simulation differs from the default.
CHANGES: dict[str, dict[str, object]] = {
    "default": {},
    "get_partition_config_from_db": {"is_config_in_database": True},
    "throughput": {"read_partitions": 1, "write_partitions": 1},
    "more_read_partitions": {"read_partitions": 8},
    "no_forwarding": {"forwarded_tasks_max": 0, "forwarded_polls_max": 0, "sent_down_polls_max": 0},
    "no_wait_time_for_addtask": {"task_wait_s": 0.0},
    "no_wait_time_for_polltask": {"poll_wait_s": 0.0},
    "no_wait_time_for_polltask_and_addtask": {"task_wait_s": 0.0, "poll_wait_s": 0.0},
    "round_robin_load_balancer": {
        "hosts": 8,
        "read_partitions": 2,
        "write_partitions": 2,
        "task_wait_s": 0.0,
        "poll_wait_s": 0.0,
        "start_s": 0.013,
        "strategy": Strategy.ROUND_ROBIN,
        "generators": 100,
        "phases": (Phase(300.0),),
        "tasks": 30_000,
    },
    "with_backlog": {"backlog": {1: 1_000, 2: 2_000}},
    "weighted_load_balancer_with_backlog": {"backlog": {1: 1_000, 2: 2_000}, "strategy": Strategy.WEIGHTED},
    "burst": {
        "generators": 10,
        "phases": (Phase(500.0),),
        "tasks": 10_000,
        "task_wait_s": 0.0,
        "poll_wait_s": 0.0,
    },
    "burst_adaptive": {
        "generators": 10,
        "phases": (Phase(500.0),),
        "tasks": 10_000,
        "read_partitions": 1,
        "write_partitions": 1,
        "is_config_in_database": True,
        "scaler": (200.0, 0.75, 5.0, 1.0, 2.0),
    },
    "fluctuating": {
        "read_partitions": 1,
        "write_partitions": 1,
        "generators": 4,
        "tasks": 5_000,
        "phases": (Phase(10.0, 30.0), Phase(250.0, 15.0), Phase(10.0)),
    },
    "fluctuating_adaptive": {
        "read_partitions": 1,
        "write_partitions": 1,
        "generators": 3,
        "tasks": 8_000,
        "phases": (Phase(10.0, 15.0), Phase(250.0, 30.0), Phase(10.0)),
        "is_config_in_database": True,
        "scaler": (120.0, 0.7, 3.0, 1.0, 2.0),
    },
}


def changes_of(scenario: Scenario) -> dict[str, object]:
    default = Scenario("", "")
    changed = {
        field.name: getattr(scenario, field.name)
        for field in fields(Scenario)
        if field.name not in {"name", "about"} and getattr(scenario, field.name) != getattr(default, field.name)
    }
    if scenario.scaler is not None:
        changed["scaler"] = tuple(getattr(scenario.scaler, field.name) for field in fields(scenario.scaler))
    return changed


def test_every_scenario_of_cadence_is_offered_or_listed_with_a_reason() -> None:
    assert list(SCENARIOS) == list(CHANGES)
    assert set(NOT_OFFERED) == {
        "zonal_isolation",
        "zonal_isolation_few_pollers",
        "zonal_isolation_many_pollers",
        "zonal_isolation_single_partition",
        "zonal_isolation_skew",
        "zonal_isolation_skew_extreme",
        "zonal_isolation_skew_forwarding",
    }
    assert all("isolation groups" in reason for reason in NOT_OFFERED.values())


@pytest.mark.parametrize("name", CHANGES)
def test_a_scenario_differs_from_the_default_as_documented(name: str) -> None:
    assert changes_of(SCENARIOS[name]) == CHANGES[name]


def test_the_default_scenario_has_the_documented_values() -> None:
    scenario = SCENARIOS["default"]
    assert (scenario.hosts, scenario.read_partitions, scenario.write_partitions) == (4, 4, 4)
    assert (scenario.forwarded_tasks_max, scenario.forwarded_polls_max) == (1, 1)
    assert (scenario.forwarded_tasks_per_s, scenario.children_max) == (10.0, 20)
    assert (scenario.task_wait_s, scenario.poll_wait_s) == (0.01, 0.01)
    assert (scenario.generators, scenario.phases, scenario.tasks) == (2, (Phase(80.0),), 3_000)
    assert (scenario.pollers, scenario.work_s, scenario.strategy) == (8, 0.001, Strategy.RANDOM)
    assert scenario.load.poll_timeout_s == POLL_TIMEOUT_S == 60.0
    assert scenario.load.limit_s == 180.0


@pytest.mark.parametrize("speed", [1.0, 20.0, 1000.0])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_settings_of_every_scenario_are_valid_at_every_speed(name: str, speed: float) -> None:
    scenario = SCENARIOS[name].faster(speed)
    settings = DynamicSettings(overrides=scenario.settings())
    assert settings.get(matching.NUM_READ_PARTITIONS) == scenario.read_partitions
    assert settings.get(matching.NUM_WRITE_PARTITIONS) == scenario.write_partitions
    assert settings.get(matching.LOCAL_TASK_WAIT_TIME) == scenario.task_wait_s
    assert settings.get(matching.LOCAL_POLL_WAIT_TIME) == scenario.poll_wait_s
    assert settings.get(matching.TASKLIST_LOAD_BALANCER_STRATEGY) is scenario.strategy
    assert settings.get(matching.ENABLE_ADAPTIVE_SCALER) is (scenario.scaler is not None)


def test_a_faster_scenario_keeps_its_rates_and_divides_times_and_tasks() -> None:
    scenario = SCENARIOS["fluctuating_adaptive"].faster(10)
    assert scenario.phases == (Phase(10.0, 1.5), Phase(250.0, 3.0), Phase(10.0))
    assert scenario.tasks == 800
    assert scenario.poll_timeout_s == 6.0
    assert scenario.scaler is not None
    assert (scenario.scaler.sustained_s, scenario.scaler.interval_s, scenario.scaler.window_s) == (0.3, 0.1, 0.2)
    assert scenario.scaler.upscale_rps == 120.0
    assert SCENARIOS["with_backlog"].faster(10).backlog == {1: 100, 2: 200}


@pytest.mark.parametrize(("name", "ideal"), [("burst_adaptive", 3), ("fluctuating_adaptive", 3), ("burst", None)])
def test_the_ideal_number_of_partitions_follows_the_highest_rate(name: str, ideal: int | None) -> None:
    assert SCENARIOS[name].ideal_write_partitions == ideal


def test_an_unknown_scenario_gets_a_helpful_error() -> None:
    with pytest.raises(UnknownScenario, match="see --list-scenarios"):
        find_scenario("nonsense")
    with pytest.raises(UnknownScenario, match="isolation groups, which Fairlead does not have"):
        find_scenario("zonal_isolation_skew")
