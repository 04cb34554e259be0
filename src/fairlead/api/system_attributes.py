"""The search attributes that every namespace has, with their types."""

from temporalio.api.enums.v1 import IndexedValueType

KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
KEYWORD_LIST = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST
INT = IndexedValueType.INDEXED_VALUE_TYPE_INT
DATETIME = IndexedValueType.INDEXED_VALUE_TYPE_DATETIME
BOOL = IndexedValueType.INDEXED_VALUE_TYPE_BOOL
# Search attributes that every namespace has; they can't be added or removed.
SYSTEM_SEARCH_ATTRIBUTES: dict[str, IndexedValueType.ValueType] = {
    "BatcherNamespace": KEYWORD,
    "BatcherUser": KEYWORD,
    "BinaryChecksums": KEYWORD_LIST,
    "BuildIds": KEYWORD_LIST,
    "CloseTime": DATETIME,
    "ExecutionDuration": INT,
    "ExecutionStatus": KEYWORD,
    "ExecutionTime": DATETIME,
    "HistoryLength": INT,
    "HistorySizeBytes": INT,
    "ParentRunId": KEYWORD,
    "ParentWorkflowId": KEYWORD,
    "RootRunId": KEYWORD,
    "RootWorkflowId": KEYWORD,
    "RunId": KEYWORD,
    "StartTime": DATETIME,
    "StateTransitionCount": INT,
    "TaskQueue": KEYWORD,
    "TemporalChangeVersion": KEYWORD_LIST,
    "TemporalExternalPayloadCount": INT,
    "TemporalExternalPayloadSizeBytes": INT,
    "TemporalNamespaceDivision": KEYWORD,
    "TemporalPauseInfo": KEYWORD_LIST,
    "TemporalReportedProblems": KEYWORD_LIST,
    "TemporalSchedulePaused": BOOL,
    "TemporalScheduledById": KEYWORD,
    "TemporalScheduledStartTime": DATETIME,
    "TemporalUsedWorkerDeploymentVersions": KEYWORD_LIST,
    "TemporalWorkerDeployment": KEYWORD,
    "TemporalWorkerDeploymentVersion": KEYWORD,
    "TemporalWorkflowVersioningBehavior": KEYWORD,
    "WorkflowId": KEYWORD,
    "WorkflowType": KEYWORD,
}
