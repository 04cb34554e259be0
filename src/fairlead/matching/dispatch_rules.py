"""Changes of a task queue's dispatch rules by calls."""

from fairlead.core.errors import FixRequest
from fairlead.core.fairness import WeightOverrides
from fairlead.core.rates import check_rate
from fairlead.matching.messages import ConfigureRequest, DispatchRules, RateChange, RateRule


class TooManyWeights(FixRequest):
    """A task queue would have more weight overrides than `matching.maxFairnessKeyWeightOverrides` allows."""


def change_rules(rules: DispatchRules, change: ConfigureRequest, *, now_s: float, weights_max: int) -> DispatchRules:
    """Return the rules after a change, with the next version; the same rules if the request contains no change."""
    if change.queue_rate is None and change.key_rate is None and not change.set_weights and not change.unset_weights:
        return rules
    weights = rules.weights | change.set_weights
    for key in change.unset_weights:
        weights.pop(key, None)
    if len(weights) > weights_max and change.set_weights:
        raise TooManyWeights("fairness weight overrides update rejected: exceeding maximum key size")
    # Raises an error if a key or a weight is invalid.
    WeightOverrides(weights)

    def changed(rule: RateRule | None, to: RateChange | None) -> RateRule | None:
        if to is None:
            return rule
        rate_per_s = None if to.rate_per_s is None else check_rate(to.rate_per_s)
        return RateRule(rate_per_s, to.reason, change.identity, now_s)

    return DispatchRules(
        rules.version + 1,
        changed(rules.queue_rate, change.queue_rate),
        changed(rules.key_rate, change.key_rate),
        weights,
    )
