"""The rates at which tasks are added to one partition."""

from dataclasses import dataclass

from fairlead.core.scaling import RateWindow
from fairlead.matching.partition.priority_rates import PriorityRates


@dataclass(slots=True, eq=False)
class AddRates:
    """Rates of added tasks, without forwarded ones. `in_flight` counts adds that have not returned yet."""

    by_priority: PriorityRates
    for_scaler: RateWindow
    in_flight: int = 0
