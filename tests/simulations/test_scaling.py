import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.figure import Figure

from fairlead.cli.commands import cli
from fairlead.core.scaling import Action, Decision, ScalerSettings, partitions_needed
from fairlead.simulations import scaling
from fairlead.simulations.traffic import Load, TaskQueueWorld

SETTINGS = ScalerSettings()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", "scaling", *arguments])


def answer(*arguments: str) -> dict[str, Any]:
    result = invoke("-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    parsed: dict[str, Any] = json.loads(result.output)
    return parsed


def summary(*arguments: str) -> dict[str, Any]:
    return {row["measure"]: row["value"] for row in answer(*arguments)["summary"]}


def day(
    seed: int = 1,
    *,
    noise: float = 0.03,
    skew: float = 1.0,
    drain_s: float = 600.0,
    settings: ScalerSettings = SETTINGS,
) -> list[Decision]:
    source = Random(seed)
    load = Load(source, peak_qps=3_000.0, noise=noise)
    world = TaskQueueWorld(source, load, skew=skew, push_s=2.0, drain_s=drain_s)
    return [tick.decision for tick in scaling.run_day(world, settings)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("skew", [1.0, 4.0])
def test_the_count_never_exceeds_the_need_of_the_highest_load(seed: int, skew: float) -> None:
    decisions = day(seed, skew=skew)
    highest_qps = max(decision.qps for decision in decisions)
    assert max(decision.after.write for decision in decisions) <= partitions_needed(highest_qps, upscale_rps=200)
    for decision in decisions:
        if decision.action is Action.UPSCALE:
            assert decision.after.write == partitions_needed(decision.qps, upscale_rps=200)


def test_the_count_does_not_rise_soon_after_a_downscale_on_smooth_traffic() -> None:
    moves = [decision for decision in day(noise=0.0) if decision.action in {Action.UPSCALE, Action.DOWNSCALE}]
    turns = [
        later.at_s - earlier.at_s
        for earlier, later in pairwise(moves)
        if (earlier.action, later.action) == (Action.DOWNSCALE, Action.UPSCALE)
    ]
    assert len(moves) > 10
    assert all(turn_s > SETTINGS.downscale_sustained_s for turn_s in turns)
    assert scaling.shortest_turn_s(moves) == min(turns, default=None)


def test_smooth_traffic_causes_only_upscales_until_its_peak_and_only_downscales_after_it() -> None:
    """No threshold is crossed back and forth."""
    moves = [decision.action for decision in day(noise=0.0)]
    ups = [number for number, action in enumerate(moves) if action is Action.UPSCALE]
    downs = [number for number, action in enumerate(moves) if action is Action.DOWNSCALE]
    assert max(ups) < min(downs)


def test_the_load_is_between_the_thresholds_except_shortly_before_a_change() -> None:
    """SC-14: the upper half of the picture."""
    decisions = day()
    outside = [
        decision
        for decision in decisions
        if not decision.downscale_threshold_qps <= decision.qps <= decision.upscale_threshold_qps
    ]
    assert len(outside) < 0.06 * len(decisions)
    for decision in outside:
        # The load is outside for at most the sustained duration; then the count changes.
        since_s = decision.above_since_s or decision.below_since_s
        assert since_s is not None
        assert decision.at_s - since_s <= SETTINGS.downscale_sustained_s


def test_read_is_lowered_only_after_a_drain() -> None:
    """SC-11: the lower half of the picture."""
    decisions = day(drain_s=1_800.0)
    assert all(decision.after.read >= decision.after.write >= 1 for decision in decisions)
    lowered = [decision for decision in decisions if decision.action is Action.DOWNSCALE]
    drained = [decision for decision in decisions if decision.action is Action.DRAIN]
    assert all(decision.after.read == decision.before.read for decision in lowered)
    assert drained
    for decision in drained:
        for number in range(decision.after.read, decision.before.read):
            left_s = max(low.at_s for low in lowered if low.after.write <= number and low.at_s < decision.at_s)
            # The fastest partition needs half of the drain time.
            assert decision.at_s - left_s >= 900.0
    assert decisions[-1].after.read == decisions[-1].after.write


def test_every_change_raises_the_version_by_one() -> None:
    decisions = day()
    for decision in decisions:
        assert decision.after.version == decision.before.version + (decision.after != decision.before)
    for earlier, later in pairwise(decisions):
        assert later.before == earlier.after


def test_the_scaler_uses_fewer_partitions_than_a_fixed_count() -> None:
    reported = summary()
    assert reported["partition-hours"] < 0.5 * reported["partition-hours with the peak count all day"]
    assert reported["overshoot"] == 0
    assert reported["most write partitions"] <= reported["ideal for the highest QPS measured"]


def test_skew_does_not_change_the_count_but_would_mislead_an_estimate_from_the_root() -> None:
    even, skewed = summary("--noise", "0"), summary("--noise", "0", "--skew", "4")
    assert abs(even["most write partitions"] - skewed["most write partitions"]) <= 1
    estimate = "highest count by an estimate from the root alone"
    assert even[estimate] <= even["ideal for the highest QPS measured"] + 1
    assert skewed[estimate] > 2 * skewed["ideal for the highest QPS measured"]


def test_the_summary_agrees_with_the_table_of_decisions() -> None:
    reported = answer("--peak-qps", "900")
    assert reported["subject"] == "scaling"
    assert reported["parameters"]["peak_qps"] == 900
    counted = {row["measure"]: row["value"] for row in reported["summary"]}
    for action in ("upscale", "downscale", "drain"):
        assert counted[f"changes: {action}"] == sum(row["action"] == action for row in reported["decisions"])
    assert all(set(row) == {"time", "action", "read", "write", "reason"} for row in reported["decisions"])
    assert [row["time"] for row in reported["decisions"]] == sorted(row["time"] for row in reported["decisions"])
    first = reported["decisions"][0]
    assert first["action"] == "upscale"
    assert first["write"] == "1 -> 2"
    assert "QPS are above 200.0 for 60 s" in first["reason"]


def test_the_same_seed_gives_the_same_output_and_picture(tmp_path: Path) -> None:
    pictures = [tmp_path / "one.png", tmp_path / "other.png"]
    reported = [invoke("--seed", "5", "--plot", str(picture)).output for picture in pictures]
    assert reported[0].replace("one.png", "other.png") == reported[1]
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert pictures[0].read_bytes().startswith(b"\x89PNG")


def test_different_seeds_give_different_decisions() -> None:
    assert answer("--seed", "1")["decisions"] != answer("--seed", "2")["decisions"]


def test_the_picture_shows_the_decisions() -> None:
    decisions = day()
    figure = Figure()
    scaling.draw(figure, decisions, SETTINGS)
    above, below = figure.axes
    shown = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in [*above.lines, *below.lines]}
    assert shown["tasks added (measured)"] == [decision.qps for decision in decisions]
    assert shown["upscale above"] == [decision.upscale_threshold_qps for decision in decisions]
    assert shown["downscale below"] == [decision.downscale_threshold_qps for decision in decisions]
    assert shown["write"] == [decision.after.write for decision in decisions]
    assert shown["read"] == [decision.after.read for decision in decisions]
    for axes in (above, below):
        assert axes.get_title()
        assert axes.get_ylabel()
        assert axes.get_legend() is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ("--peak-qps", "0"),
        ("--upscale-rps", "-1"),
        ("--downscale-factor", "1"),
        ("--downscale-factor", "0"),
        ("--upscale-sustained-s", "-1"),
        ("--skew", "0.5"),
        ("--drain-s", "-1"),
        ("--noise", "2"),
        ("--seed", "-1"),
        ("--peak-qps", "nan"),
    ],
)
def test_an_invalid_argument_is_rejected_with_its_name(arguments: tuple[str, str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output


def test_contradicting_arguments_are_rejected() -> None:
    result = invoke("--peak-qps", "50000", "--upscale-rps", "10")
    assert result.exit_code == 2
    assert "needs more than the maximum of 100 partitions" in result.output


def test_a_time_of_day_is_shown_as_hours_minutes_and_seconds() -> None:
    assert scaling.clock(0.0) == "00:00:00"
    assert scaling.clock(45_015.0) == "12:30:15"
