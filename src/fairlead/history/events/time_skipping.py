"""Effects of events on the clock of a run that skips time."""

from temporalio.api.common.v1 import TimeSkippingConfig
from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.times import from_duration, from_timestamp
from fairlead.history.events.errors import cannot_follow
from fairlead.history.state.run import RunState
from fairlead.history.state.time_skipping import TimeSkipping


def begun(event: HistoryEvent) -> TimeSkipping | None:
    """The clock with which a run begins; None for a run without time skipping."""
    attributes = event.workflow_execution_started_event_attributes
    if not attributes.HasField("time_skipping_config") and not attributes.HasField("time_skipping_state_propagation"):
        return None
    inherited = attributes.time_skipping_state_propagation
    clock = TimeSkipping(skipped_ns=from_duration(inherited.initial_skipped_duration))
    began_ns = from_timestamp(event.event_time)
    _configure(clock, attributes.time_skipping_config, began_ns)
    clock.skips = inherited.initial_skip_count
    if inherited.HasField("fast_forward_target_time"):
        clock.target_ns = from_timestamp(inherited.fast_forward_target_time)
        clock.has_completed = not clock.is_enabled and clock.target_ns <= began_ns
    return clock


def configured(state: RunState, event: HistoryEvent) -> None:
    """Apply a client's new config; time that has been skipped stays skipped."""
    attributes = event.workflow_execution_options_updated_event_attributes
    if not attributes.time_skipping_config_updated:
        return
    clock = state.time_skipping = state.time_skipping or TimeSkipping()
    _configure(clock, attributes.time_skipping_config, from_timestamp(event.event_time))


def transitioned(state: RunState, event: HistoryEvent) -> None:
    """Apply a skip of time, or the end of skipping after a fast-forward."""
    clock = state.time_skipping
    if clock is None:
        raise cannot_follow(state, event, "the run does not skip time")
    attributes = event.workflow_execution_time_skipping_transitioned_event_attributes
    skipped_ns = from_timestamp(attributes.target_time) - from_timestamp(event.event_time)
    if skipped_ns > 0:
        clock.skipped_ns += skipped_ns
        clock.skips += 1
    if attributes.disabled_after_fast_forward:
        clock.has_completed = True
    if clock.has_completed or clock.skips >= clock.skips_max:
        clock.is_enabled = False


def _configure(clock: TimeSkipping, config: TimeSkippingConfig, now_ns: int) -> None:
    clock.config = config.SerializeToString(deterministic=True)
    clock.is_enabled = config.enabled
    clock.skips, clock.skips_max = 0, config.max_session_skip_count
    clock.has_completed = False
    has_target = config.HasField("fast_forward_config")
    clock.target_ns = now_ns + from_duration(config.fast_forward_config.duration) if has_target else 0
