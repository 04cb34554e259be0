"""The rules of dispatch that calls set for a task list: how they change, and how they are stored."""

import msgspec

from fairlead.core.errors import FixRequest
from fairlead.core.fairness import WeightOverrides
from fairlead.matching.messages import ConfigureRequest, DispatchRules, RateChange, RateRule
from fairlead.matching.rates import check_rate

encode_rules = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DispatchRules).decode


class TooManyWeights(FixRequest):
    """A task list would have more weights of fairness keys than it may."""


def decode_rules(stored: bytes | None) -> DispatchRules:
    """What `encode_rules` has written; where nothing was ever saved, no rules."""
    return DispatchRules() if stored is None else _decode(stored)


def change_rules(rules: DispatchRules, change: ConfigureRequest, *, now_s: float, weights_max: int) -> DispatchRules:
    """The rules after a change, at the next version; the same rules if nothing is to be changed."""
    if change.queue_rate is None and change.key_rate is None and not change.set_weights and not change.unset_weights:
        return rules
    weights = rules.weights | change.set_weights
    for key in change.unset_weights:
        weights.pop(key, None)
    if len(weights) > weights_max and change.set_weights:
        raise TooManyWeights("fairness weight overrides update rejected: exceeding maximum key size")
    # Refuses keys and weights that are none.
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
