import math
from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.partitions import PARTITIONS_MAX
from fairlead.core.scaling import InvalidScalerSettings, ScalerSettings


def test_the_default_settings_follow_the_design() -> None:
    """SC-13."""
    settings = ScalerSettings()
    assert settings.upscale_rps == 200
    assert settings.downscale_factor == 0.75
    assert settings.upscale_sustained_s == 60
    assert settings.downscale_sustained_s == 120
    assert settings.interval_s == 15
    assert settings.partitions_min == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upscale_rps", 0.0),
        ("upscale_rps", -1.0),
        ("upscale_rps", math.inf),
        ("upscale_rps", math.nan),
        ("downscale_factor", 0.0),
        ("downscale_factor", 1.0),
        ("downscale_factor", math.nan),
        ("upscale_sustained_s", -0.1),
        ("upscale_sustained_s", math.inf),
        ("upscale_sustained_s", math.nan),
        ("downscale_sustained_s", -0.1),
        ("downscale_sustained_s", math.nan),
        ("interval_s", 0.0),
        ("interval_s", math.nan),
        ("partitions_min", 0),
        ("partitions_min", PARTITIONS_MAX + 1),
        ("partitions_max", 0),
        ("partitions_max", PARTITIONS_MAX + 1),
    ],
)
def test_an_invalid_value_is_rejected_with_its_name(name: str, value: float) -> None:
    values: dict[str, Any] = {name: value}
    with pytest.raises(InvalidScalerSettings, match=f"^{name} is {value}: it must be"):
        replace(ScalerSettings(), **values)


def test_a_minimum_above_the_maximum_is_rejected() -> None:
    assert ScalerSettings(partitions_min=4, partitions_max=4).partitions_max == 4
    with pytest.raises(InvalidScalerSettings, match="partitions_max is 3: it must be from partitions_min, which is 4"):
        ScalerSettings(partitions_min=4, partitions_max=3)


def test_a_sustained_duration_of_zero_is_valid() -> None:
    assert ScalerSettings(upscale_sustained_s=0.0, downscale_sustained_s=0.0).upscale_sustained_s == 0
