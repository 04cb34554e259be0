"""The limits of runs as plain values, read from the settings of their namespace."""

from fairlead.api.concurrency_limits import ConcurrencyLimits
from fairlead.api.limits import Limits
from fairlead.api.times import SECOND_NS
from fairlead.settings import DynamicSettings, Scope
from fairlead.settings.dynamic import history, limits

# Maximum number of namespaces whose limits are cached; the registry holds fewer.
NAMESPACES_MAX = 20_000


class RunLimits:
    """Limits by namespace id; cleared when the settings change."""

    def __init__(self, settings: DynamicSettings) -> None:
        self._settings = settings
        self._revision = settings.revision
        self._limits: dict[str, Limits] = {}
        self.concurrency = ConcurrencyLimits(settings)

    def of(self, namespace_id: str) -> Limits:
        """The limits that apply in a namespace."""
        if self._revision != self._settings.revision or len(self._limits) >= NAMESPACES_MAX:
            self._revision = self._settings.revision
            self._limits.clear()
        found = self._limits.get(namespace_id)
        if found is None:
            found = self._limits[namespace_id] = limits_of(self._settings, Scope(namespace_id), self.concurrency)
        return found


def limits_of(settings: DynamicSettings, scope: Scope, concurrency: ConcurrencyLimits | None = None) -> Limits:
    """The limits that the settings have in a scope."""
    get = settings.get
    namespace_id = scope.namespace or ""
    concurrency = concurrency or ConcurrencyLimits(settings)
    return Limits(
        id_length_max=get(limits.MAX_ID_LENGTH),
        blob_size_max=get(limits.BLOB_SIZE_ERROR, scope),
        blob_size_warn=get(limits.BLOB_SIZE_WARN, scope),
        memo_size_max=get(limits.MEMO_SIZE_ERROR, scope),
        memo_size_warn=get(limits.MEMO_SIZE_WARN, scope),
        pending_activities_max=get(limits.PENDING_ACTIVITIES_ERROR, scope),
        pending_children_max=get(limits.PENDING_CHILDREN_ERROR, scope),
        pending_signals_max=get(limits.PENDING_SIGNALS_ERROR, scope),
        pending_cancels_max=get(limits.PENDING_CANCELS_ERROR, scope),
        buffered_events_max=get(history.MAXIMUM_BUFFERED_EVENTS, scope),
        signals_max=get(history.MAXIMUM_SIGNALS, scope),
        updates_in_flight_max=get(history.MAX_IN_FLIGHT_UPDATES, scope),
        updates_max=get(history.MAX_TOTAL_UPDATES, scope),
        history_count_max=get(limits.HISTORY_COUNT_ERROR, scope),
        history_count_warn=get(limits.HISTORY_COUNT_WARN, scope),
        history_size_max=get(limits.HISTORY_SIZE_ERROR, scope),
        history_size_warn=get(limits.HISTORY_SIZE_WARN, scope),
        history_count_suggest=get(limits.HISTORY_COUNT_SUGGEST, scope),
        history_size_suggest=get(limits.HISTORY_SIZE_SUGGEST, scope),
        task_page_events=get(limits.TASK_PAGE_EVENTS, scope),
        workflow_task_timeout_default_ns=_ns(get(history.DEFAULT_WORKFLOW_TASK_TIMEOUT, scope)),
        workflow_task_retry_max_ns=_ns(get(history.WORKFLOW_TASK_RETRY_MAX_INTERVAL)),
        workflow_task_row_max_ns=_ns(get(history.WORKFLOW_TASK_HEARTBEAT_TIMEOUT, scope)),
        eager_start=get(history.ENABLE_EAGER_WORKFLOW_START, scope),
        eager_activities=get(history.ENABLE_ACTIVITY_EAGER_EXECUTION, scope),
        limits_running=lambda task_queue: concurrency.of(namespace_id, task_queue).is_limiting,
        reported_problems_tasks_min=get(history.REPORTED_PROBLEMS_TASKS, scope),
        cross_namespace_commands=get(history.ENABLE_CROSS_NAMESPACE_COMMANDS),
    )


def _ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)
