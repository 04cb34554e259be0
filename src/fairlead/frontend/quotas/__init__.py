"""Limits on calls: quotas by host and namespace, and fair turns of namespaces on a busy host."""

from fairlead.aio.admission import Admission
from fairlead.frontend.quotas.costs import Cost, cost_of
from fairlead.frontend.quotas.quotas import Quotas

__all__ = ["Admission", "Cost", "Quotas", "cost_of"]
