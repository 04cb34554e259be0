"""Hypothesis profiles: the same properties, shallow in `make test` and deep in `make sim`."""

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "test",
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
)
settings.register_profile(
    "sim",
    max_examples=1000,
    stateful_step_count=80,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))
