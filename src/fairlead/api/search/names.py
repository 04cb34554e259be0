"""System search attributes: the fields of a row that hold them, and which of them clients may set."""

from collections.abc import Mapping

from temporalio.api.enums.v1 import IndexedValueType

from fairlead.api.system_attributes import SYSTEM_SEARCH_ATTRIBUTES
from fairlead.storage.visibility import Attribute, Column, Field

TEXT = int(IndexedValueType.INDEXED_VALUE_TYPE_TEXT)
KEYWORD = int(IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
INT = int(IndexedValueType.INDEXED_VALUE_TYPE_INT)
DOUBLE = int(IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE)
BOOL = int(IndexedValueType.INDEXED_VALUE_TYPE_BOOL)
DATETIME = int(IndexedValueType.INDEXED_VALUE_TYPE_DATETIME)
KEYWORD_LIST = int(IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST)

TYPE_NAMES = {
    TEXT: "Text",
    KEYWORD: "Keyword",
    INT: "Int",
    DOUBLE: "Double",
    BOOL: "Bool",
    DATETIME: "Datetime",
    KEYWORD_LIST: "KeywordList",
}

EXECUTION_STATUS = "ExecutionStatus"
EXECUTION_DURATION = "ExecutionDuration"

# Attributes with their own columns; all other attributes are in the row's map of attributes.
COLUMNS = {
    "WorkflowId": Column.WORKFLOW_ID,
    "RunId": Column.RUN_ID,
    "WorkflowType": Column.WORKFLOW_TYPE,
    EXECUTION_STATUS: Column.STATUS,
    "StartTime": Column.START_TIME_NS,
    "ExecutionTime": Column.EXECUTION_TIME_NS,
    "CloseTime": Column.CLOSE_TIME_NS,
    EXECUTION_DURATION: Column.EXECUTION_DURATION_NS,
    "TaskQueue": Column.TASK_QUEUE,
    "HistoryLength": Column.HISTORY_LENGTH,
    "HistorySizeBytes": Column.HISTORY_SIZE_BYTES,
    "StateTransitionCount": Column.STATE_TRANSITION_COUNT,
    "ParentWorkflowId": Column.PARENT_WORKFLOW_ID,
    "ParentRunId": Column.PARENT_RUN_ID,
    "RootWorkflowId": Column.ROOT_WORKFLOW_ID,
    "RootRunId": Column.ROOT_RUN_ID,
}

SET_BY_SERVER = COLUMNS.keys() | {
    "TemporalExternalPayloadCount",
    "TemporalExternalPayloadSizeBytes",
    "TemporalUsedWorkerDeploymentVersions",
    "TemporalWorkerDeployment",
    "TemporalWorkerDeploymentVersion",
    "TemporalWorkflowVersioningBehavior",
}


def type_of(name: str, custom: Mapping[str, int]) -> int | None:
    """The number of an attribute's type; None if the namespace doesn't have the attribute."""
    found = SYSTEM_SEARCH_ATTRIBUTES.get(name)
    return custom.get(name) if found is None else int(found)


def field_of(name: str) -> Field:
    """The field of a row that holds the attribute."""
    return COLUMNS.get(name) or Attribute(name)
