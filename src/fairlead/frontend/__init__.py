"""Temporal's WorkflowService and OperatorService: validate requests, and pass them on to history and matching."""

from fairlead.frontend.gateway.context import Frontend, Handler
from fairlead.frontend.gateway.service import OPERATOR_SERVICE, SERVICES, WORKFLOW_SERVICE, add_services, answerers
from fairlead.frontend.handlers.system import read_cluster_id

__all__ = [
    "OPERATOR_SERVICE",
    "SERVICES",
    "WORKFLOW_SERVICE",
    "Frontend",
    "Handler",
    "add_services",
    "answerers",
    "read_cluster_id",
]
