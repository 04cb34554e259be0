"""Decides which refusals get a record of their own in the audit, and counts those that get none."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from fairlead.rpc.budget import Budget

# Records of refusals of one caller: a burst at once, then a rate per second.
CALLER_BURST_MAX: Final = 50
CALLER_PER_S_MAX: Final = 1
# The same limits for all callers together. Unauthenticated and authenticated callers are counted separately: a flood
# from unknown addresses must not hide the refusals of a known caller.
ALL_BURST_MAX: Final = 500
ALL_PER_S_MAX: Final = 5
# Callers whose budgets are remembered; the least recently refused one is forgotten.
CALLERS_MAX: Final = 1_024
# Maximum number of callers with their own count of unrecorded refusals; all other callers share one count.
COUNTED_MAX: Final = 32


@dataclass(slots=True)
class LeftOut:
    """Refusals of one caller without records: their number, and the times in seconds of the first and the last one."""

    count: int
    first_s: float
    last_s: float


class RefusalLimit:
    """Bounds the records of refusals per caller and in all. A caller is a principal, or the address of a stranger."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, Budget] = OrderedDict()
        self._strangers = Budget(burst_max=ALL_BURST_MAX, per_s_max=ALL_PER_S_MAX)
        self._known = Budget(burst_max=ALL_BURST_MAX, per_s_max=ALL_PER_S_MAX)
        self._left_out: dict[str, LeftOut] = {}

    def admits(self, caller: str, *, is_known: bool, now_s: float) -> bool:
        """Whether a refusal gets a record; if not, it is counted for `take`."""
        all_together = self._known if is_known else self._strangers
        # A budget that is overdrawn would need longer to recover: ask before spending.
        if self._budget(caller).may_spend(now_s) and all_together.may_spend(now_s):
            self._budget(caller).spend(now_s)
            all_together.spend(now_s)
            return True
        key = caller if caller in self._left_out or len(self._left_out) < COUNTED_MAX else ""
        left_out = self._left_out.setdefault(key, LeftOut(0, now_s, now_s))
        left_out.count += 1
        left_out.last_s = now_s
        return False

    def take(self) -> dict[str, LeftOut]:
        """The refusals that were left out since the last call, by caller; those of further callers are under ""."""
        taken, self._left_out = self._left_out, {}
        return taken

    def _budget(self, caller: str) -> Budget:
        budget = self._callers.get(caller)
        if budget is None:
            budget = self._callers[caller] = Budget(burst_max=CALLER_BURST_MAX, per_s_max=CALLER_PER_S_MAX)
            if len(self._callers) > CALLERS_MAX:
                self._callers.popitem(last=False)
        else:
            self._callers.move_to_end(caller)
        return budget
