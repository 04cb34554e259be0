"""The adaptive scaler: decides the number of partitions from measured rates, and gives a reason for each decision."""

from fairlead.core.scaling.decision import Action, Decision
from fairlead.core.scaling.rate import InvalidWindow, RateWindow
from fairlead.core.scaling.scaler import AdaptiveScaler, InvalidTime, ScalerState, partitions_needed
from fairlead.core.scaling.settings import InvalidScalerSettings, ScalerSettings

__all__ = [
    "Action",
    "AdaptiveScaler",
    "Decision",
    "InvalidScalerSettings",
    "InvalidTime",
    "InvalidWindow",
    "RateWindow",
    "ScalerSettings",
    "ScalerState",
    "partitions_needed",
]
