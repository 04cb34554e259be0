"""The clock of a run that skips time: the wall clock plus the time that its chain of runs has skipped."""

import msgspec
from temporalio.api.common.v1 import TimeSkippingConfig, TimeSkippingFastForwardInfo, TimeSkippingInfo

from fairlead.api.times import to_timestamp


class TimeSkipping(msgspec.Struct, array_like=True):
    """The clock of a run that skips time or has skipped time.

    `config` is the serialized TimeSkippingConfig that was last set; `is_enabled` becomes False when skipping ends by
    itself. `target_ns` is the target time of the fast-forward; 0 without a fast-forward.
    """

    config: bytes = b""
    is_enabled: bool = False
    skipped_ns: int = 0
    # Number of skips since the config was set, and the limit on it.
    skips: int = 0
    skips_max: int = 0
    target_ns: int = 0
    has_completed: bool = False

    def effective_config(self) -> TimeSkippingConfig:
        """The config, with the current value of `enabled`."""
        config = TimeSkippingConfig.FromString(self.config)
        config.enabled = self.is_enabled
        return config

    def fast_forward_info(self) -> TimeSkippingFastForwardInfo | None:
        """The current or last fast-forward; None if the config has none."""
        config = self.effective_config()
        if not config.HasField("fast_forward_config"):
            return None
        return TimeSkippingFastForwardInfo(
            fast_forward_duration=config.fast_forward_config.duration,
            fast_forward_id=config.fast_forward_config.id,
            target_time=to_timestamp(self.target_ns),
            has_completed=self.has_completed,
        )

    def info(self, now_ns: int) -> TimeSkippingInfo:
        """The clock as clients see it; `now_ns` is the time of the run's clock."""
        return TimeSkippingInfo(
            current_time=to_timestamp(now_ns),
            effective_config=self.effective_config(),
            fast_forward_info=self.fast_forward_info(),
            current_session_skip_count=self.skips,
        )
