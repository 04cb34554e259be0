"""Rate limits of a task queue in force, and what set each of them."""

from typing import Any, Final

from msgspec import Struct

from fairlead.core.partitions import TaskQueueId
from fairlead.matching.client_configs import new_scope
from fairlead.matching.messages import DescribeResponse, RateSource
from fairlead.matching.messages.config import RateRule
from fairlead.settings import EVERYWHERE, DynamicSettings, Setting
from fairlead.settings.dynamic.matching import FAIRNESS_KEY_RPS, OVERRIDE_TASK_QUEUE_RPS
from fairlead.settings.dynamic.rules import Rule


class RateLimit(Struct, frozen=True):
    """A rate limit; `rate_per_s` is None without one. `source` is a sentence such as "set by a worker"."""

    rate_per_s: float | None
    source: str


NO_LIMIT: Final = RateLimit(None, "")


def queue_limit_source(settings: DynamicSettings, queue: TaskQueueId, root: DescribeResponse) -> str:
    """The source of the rate limit of the whole task queue, as a sentence."""
    rule = root.rules.queue_rate
    match root.rate_source:
        case RateSource.CALL if rule is not None:
            return _set_by_call(rule)
        case RateSource.WORKER:
            return "set by a worker: max_task_queue_activities_per_second"
        case _:
            return _set_by(settings, OVERRIDE_TASK_QUEUE_RPS, queue)


def key_limit(settings: DynamicSettings, queue: TaskQueueId, root: DescribeResponse) -> RateLimit:
    """The rate limit of a fairness key of weight 1: that of a call, or else that of the setting."""
    rule = root.rules.key_rate
    if rule is not None and rule.rate_per_s is not None:
        return RateLimit(rule.rate_per_s, _set_by_call(rule))
    rate_per_s = settings.get(FAIRNESS_KEY_RPS, new_scope(queue))
    return RateLimit(rate_per_s, _set_by(settings, FAIRNESS_KEY_RPS, queue)) if rate_per_s else NO_LIMIT


def source_of(rule: Rule[Any] | None) -> str:
    """Where the value of a setting comes from, in a few words."""
    if rule is None:
        return "default"
    within = "" if rule.within == EVERYWHERE else f" for {rule.within}"
    return ("command line" if rule.line is None else f"settings file, line {rule.line}") + within


def _set_by_call(rule: RateRule) -> str:
    reason = f", because: {rule.reason}" if rule.reason else ""
    return f"set with UpdateTaskQueueConfig by {rule.identity or 'an unknown caller'}{reason}"


def _set_by(settings: DynamicSettings, setting: Setting[float], queue: TaskQueueId) -> str:
    return f"set by the dynamic setting {setting.key}, {source_of(settings.rule(setting, new_scope(queue)))}"
