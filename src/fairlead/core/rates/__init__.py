"""Rate limits that get the time as an argument: a single limit, limits by fairness key, limits by priority."""

from fairlead.core.rates.priority import PriorityRate
from fairlead.core.rates.rate import BURST_S, KEYS_MAX, InvalidRate, KeyRates, Rate, check_rate

__all__ = ["BURST_S", "KEYS_MAX", "InvalidRate", "KeyRates", "PriorityRate", "Rate", "check_rate"]
