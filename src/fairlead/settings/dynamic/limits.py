"""Limits on requests and workflows, with the names and defaults of Temporal's server."""

from fairlead.core.partitions import NAME_CHARACTERS_MAX
from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Bool, Int

_PENDING_MAX = 1_000_000

BLOB_SIZE_ERROR = Setting(
    key="limit.blobSize.error",
    kind=Int(1, 64 << 20),
    default=2 << 20,
    reach=Reach.NAMESPACE,
    about="Bytes of one payload, for example of a task; a request with a larger one fails.",
)
BLOB_SIZE_WARN = Setting(
    key="limit.blobSize.warn",
    kind=Int(1, 64 << 20),
    default=512 << 10,
    reach=Reach.NAMESPACE,
    about="Bytes of a payload above which a warning is logged: at most one per minute, with the number suppressed.",
)
MEMO_SIZE_ERROR = Setting(
    key="limit.memoSize.error",
    kind=Int(1, 64 << 20),
    default=2 << 20,
    reach=Reach.NAMESPACE,
    about="Bytes of a memo; a request with a larger one fails.",
)
MEMO_SIZE_WARN = Setting(
    key="limit.memoSize.warn",
    kind=Int(1, 64 << 20),
    default=2 << 10,
    reach=Reach.NAMESPACE,
    about="Bytes of a memo above which a warning is logged: at most one per minute.",
)
HISTORY_SIZE_ERROR = Setting(
    key="limit.historySize.error",
    kind=Int(1024, 1 << 30),
    default=50 << 20,
    reach=Reach.NAMESPACE,
    about="Bytes of a workflow's history; above it, the next change of the workflow terminates it.",
)
HISTORY_SIZE_WARN = Setting(
    key="limit.historySize.warn",
    kind=Int(1, 1 << 30),
    default=10 << 20,
    reach=Reach.NAMESPACE,
    about="Bytes of history above which a warning is logged when events are added: at most one per minute.",
)
HISTORY_COUNT_ERROR = Setting(
    key="limit.historyCount.error",
    kind=Int(10, 10_000_000),
    default=50 << 10,
    reach=Reach.NAMESPACE,
    about="Events of a workflow's history; a change that would exceed it terminates the workflow.",
)
HISTORY_COUNT_WARN = Setting(
    key="limit.historyCount.warn",
    kind=Int(1, 10_000_000),
    default=10 << 10,
    reach=Reach.NAMESPACE,
    about="Events of history above which a warning is logged when events are added: at most one per minute.",
)
HISTORY_SIZE_SUGGEST = Setting(
    key="limit.historySize.suggestContinueAsNew",
    kind=Int(0, 1 << 30),
    default=4 << 20,
    reach=Reach.NAMESPACE,
    about="Bytes of history at which workflow tasks suggest continue-as-new.",
)
HISTORY_COUNT_SUGGEST = Setting(
    key="limit.historyCount.suggestContinueAsNew",
    kind=Int(0, 10_000_000),
    default=4 << 10,
    reach=Reach.NAMESPACE,
    about="Number of events in the history at which workflow tasks suggest continue-as-new.",
)
TASK_PAGE_EVENTS = Setting(
    key="limit.historyMaxPageSize",
    kind=Int(1, 1_000),
    default=256,
    reach=Reach.NAMESPACE,
    about="Events of history sent with a workflow task; the worker reads further ones page by page.",
)
USER_METADATA_SUMMARY_SIZE = Setting(
    key="limit.userMetadataSummarySize",
    kind=Int(0, 1 << 20),
    default=400,
    reach=Reach.NAMESPACE,
    about="Bytes of the summary of a standalone activity or Nexus operation.",
)
USER_METADATA_DETAILS_SIZE = Setting(
    key="limit.userMetadataDetailsSize",
    kind=Int(0, 1 << 20),
    default=20_000,
    reach=Reach.NAMESPACE,
    about="Bytes of the details of a standalone activity or Nexus operation.",
)
ENDPOINT_NAME_MAX_LENGTH = Setting(
    key="limit.endpointNameMaxLength",
    kind=Int(1, 200),
    default=200,
    reach=Reach.GLOBAL,
    about="Characters of a Nexus endpoint's name. Stores have no room for more than the default.",
)
ENDPOINT_DESCRIPTION_MAX_SIZE = Setting(
    key="limit.endpointDescriptionMaxSize",
    kind=Int(0, 1 << 20),
    default=20_000,
    reach=Reach.GLOBAL,
    about="Bytes of a Nexus endpoint's description.",
)
ENDPOINT_EXTERNAL_URL_MAX_LENGTH = Setting(
    key="limit.endpointExternalURLMaxLength",
    kind=Int(1, 64 << 10),
    default=4 << 10,
    reach=Reach.GLOBAL,
    about="Bytes of an external Nexus endpoint's URL.",
)
ENDPOINT_LIST_DEFAULT_PAGE_SIZE = Setting(
    key="limit.endpointListDefaultPageSize",
    kind=Int(1, 10_000),
    default=100,
    reach=Reach.GLOBAL,
    about="Nexus endpoints in one page of a list, if the request does not say.",
)
ENDPOINT_LIST_MAX_PAGE_SIZE = Setting(
    key="limit.endpointListMaxPageSize",
    kind=Int(1, 10_000),
    default=1_000,
    reach=Reach.GLOBAL,
    about="Nexus endpoints in one page of a list; a request for more fails.",
)
HISTORY_MAX_PAGE_SIZE = Setting(
    key="frontend.historyMaxPageSize",
    kind=Int(1, 1_000),
    default=256,
    reach=Reach.NAMESPACE,
    about="Events in a page of GetWorkflowExecutionHistory if the request sets no page size; at most 256 in any case.",
)
VISIBILITY_MAX_PAGE_SIZE = Setting(
    key="frontend.visibilityMaxPageSize",
    kind=Int(1, 10_000),
    default=1_000,
    reach=Reach.NAMESPACE,
    about="Workflows, schedules, batch jobs, standalone activities or Nexus operations in one page of a list.",
)
PENDING_ACTIVITIES_ERROR = Setting(
    key="limit.numPendingActivities.error",
    kind=Int(0, _PENDING_MAX),
    default=2_000,
    reach=Reach.NAMESPACE,
    about="Pending activities of a workflow; a command for one more fails the workflow task. 0: no limit.",
)
PENDING_CHILDREN_ERROR = Setting(
    key="limit.numPendingChildExecutions.error",
    kind=Int(0, _PENDING_MAX),
    default=2_000,
    reach=Reach.NAMESPACE,
    about="Pending child workflows of a workflow; a command for one more fails the workflow task. 0: no limit.",
)
PENDING_SIGNALS_ERROR = Setting(
    key="limit.numPendingSignals.error",
    kind=Int(0, _PENDING_MAX),
    default=2_000,
    reach=Reach.NAMESPACE,
    about="Pending signals to other workflows; a command for one more fails the workflow task. 0: no limit.",
)
PENDING_CANCELS_ERROR = Setting(
    key="limit.numPendingCancelRequests.error",
    kind=Int(0, _PENDING_MAX),
    default=2_000,
    reach=Reach.NAMESPACE,
    about="Pending cancel requests to other workflows; a command for one more fails the workflow task. 0: no limit.",
)
MAX_ID_LENGTH = Setting(
    key="limit.maxIDLength",
    kind=Int(1, NAME_CHARACTERS_MAX),
    default=NAME_CHARACTERS_MAX,
    reach=Reach.GLOBAL,
    about="Characters of an id or a name given by a user. Stores have no room for more than the default.",
)
MAX_CONCURRENT_BATCH_OPERATIONS = Setting(
    key="frontend.MaxConcurrentBatchOperationPerNamespace",
    kind=Int(0, 1000),
    default=1,
    reach=Reach.NAMESPACE,
    about="Batch jobs of a namespace that run at the same time; the start of one more fails.",
)
WORKFLOW_RULES_ENABLED = Setting(
    key="frontend.workflowRulesAPIsEnabled",
    kind=Bool(),
    default=False,
    reach=Reach.NAMESPACE,
    about="Whether workflow rules can be created, described, listed and deleted. Existing rules stay in force.",
)
WORKFLOW_RULES_MAX = Setting(
    key="frontend.maxWorkflowRulesPerNamespace",
    kind=Int(0, 100),
    default=10,
    reach=Reach.NAMESPACE,
    about="Workflow rules of a namespace. The oldest expired rule makes room for a new one.",
)
TIME_SKIPPING_ENABLED = Setting(
    key="frontend.WorkflowTimeSkippingEnabled",
    kind=Bool(),
    default=False,
    reach=Reach.NAMESPACE,
    about="Whether workflows can be started with a clock of their own, which skips time.",
)
TIME_SKIPPING_SKIPS_MAX = Setting(
    key="frontend.WorkflowTimeSkippingMaxSkipPerSession",
    kind=Int(1, 1_000_000),
    default=200,
    reach=Reach.NAMESPACE,
    about="Skips after which a workflow's clock skips no more time, if the client sets no number.",
)
WORKFLOW_PAUSE_ENABLED = Setting(
    key="frontend.WorkflowPauseEnabled",
    kind=Bool(),
    default=False,
    reach=Reach.NAMESPACE,
    about="Whether workflows can be paused. Workers get no workflow tasks or activities of a paused workflow.",
)
