"""Rate limits without a clock of their own: of one thing, of each fairness key, and of calls by priority."""

from fairlead.core.rates.priority import PriorityRate
from fairlead.core.rates.rate import BURST_S, KEYS_MAX, InvalidRate, KeyRates, Rate, check_rate

__all__ = ["BURST_S", "KEYS_MAX", "InvalidRate", "KeyRates", "PriorityRate", "Rate", "check_rate"]
