"""Limits on running activities: which activities hold a slot, and when a key at its limit tries again."""

from fairlead.core.concurrency.parked_keys import RETRY_S, ParkedKeys
from fairlead.core.concurrency.slots import Full, Slot, SlotLimits, SlotTable

__all__ = ["RETRY_S", "Full", "ParkedKeys", "Slot", "SlotLimits", "SlotTable"]
