"""Temporal's WorkflowService and OperatorService: checks what clients send, and hands it to history and matching."""

from fairlead.frontend.context import Frontend, Handler
from fairlead.frontend.service import OPERATOR_SERVICE, WORKFLOW_SERVICE, add_services
from fairlead.frontend.system import read_cluster_id

__all__ = ["OPERATOR_SERVICE", "WORKFLOW_SERVICE", "Frontend", "Handler", "add_services", "read_cluster_id"]
