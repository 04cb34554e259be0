"""Settings of workflow execution, with the names and defaults of Temporal's server."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Bool, Duration, Int

_DAY_S = 86_400.0

MAXIMUM_BUFFERED_EVENTS = Setting(
    key="history.maximumBufferedEventsBatch",
    kind=Int(1, 100_000),
    default=100,
    reach=Reach.NAMESPACE,
    about="Events buffered until the end of a workflow task; above it, the task fails and is scheduled again.",
)
MAXIMUM_SIGNALS = Setting(
    key="history.maximumSignalsPerExecution",
    kind=Int(0, 10_000_000),
    default=10_000,
    reach=Reach.NAMESPACE,
    about="Signals to one workflow execution; further ones fail. 0: no limit.",
)
DEFAULT_WORKFLOW_TASK_TIMEOUT = Setting(
    key="history.defaultWorkflowTaskTimeout",
    kind=Duration(0.001, 120.0),
    default=10.0,
    reach=Reach.NAMESPACE,
    about="Timeout of a workflow task if the start of the workflow sets none.",
)
WORKFLOW_TASK_HEARTBEAT_TIMEOUT = Setting(
    key="history.workflowTaskHeartbeatTimeout",
    kind=Duration(1.0, 30 * _DAY_S),
    default=1_800.0,
    reach=Reach.NAMESPACE,
    about="How long a worker may keep a workflow by responses whose only effect is to get the next workflow task.",
)
WORKFLOW_TASK_RETRY_MAX_INTERVAL = Setting(
    key="history.workflowTaskRetryMaxInterval",
    kind=Duration(1.0, _DAY_S),
    default=600.0,
    reach=Reach.GLOBAL,
    about="Longest time added to the timeout of a workflow task after repeated failures.",
)
MAX_IN_FLIGHT_UPDATES = Setting(
    key="history.maxInFlightUpdates",
    kind=Int(0, 10_000),
    default=10,
    reach=Reach.NAMESPACE,
    about="Updates of one workflow execution without an outcome; further ones fail. 0: no limit.",
)
MAX_TOTAL_UPDATES = Setting(
    key="history.maxTotalUpdates",
    kind=Int(0, 1_000_000),
    default=2_000,
    reach=Reach.NAMESPACE,
    about="Updates of one workflow execution in total; further ones fail. 0: no limit.",
)
ENABLE_ACTIVITY_EAGER_EXECUTION = Setting(
    key="system.enableActivityEagerExecution",
    kind=Bool(),
    default=True,
    reach=Reach.NAMESPACE,
    about="Whether a worker that asks for it gets its scheduled activities in the response to its workflow task.",
)
ENABLE_EAGER_WORKFLOW_START = Setting(
    key="system.enableEagerWorkflowStart",
    kind=Bool(),
    default=True,
    reach=Reach.NAMESPACE,
    about="Whether a client that asks for it gets the first workflow task in the response to the start.",
)
ENABLE_CROSS_NAMESPACE_COMMANDS = Setting(
    key="system.enableCrossNamespaceCommands",
    kind=Bool(),
    default=False,
    reach=Reach.GLOBAL,
    about="Whether a workflow may start, signal and cancel workflows of other namespaces.",
)
REPORTED_PROBLEMS_TASKS = Setting(
    key="system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute",
    kind=Int(0, 1_000_000),
    default=5,
    reach=Reach.NAMESPACE,
    about="Consecutive failures of workflow tasks that set the search attribute TemporalReportedProblems. 0: never.",
)
