"""Worker deployments: versions of workers, and the routing of tasks to them."""

from fairlead.api.worker_deployments.registry import Deployments
from fairlead.api.worker_deployments.routing import Route, decode_mark, list_of, version_in, version_of
from fairlead.api.worker_deployments.state import Deployment, VersionState

__all__ = ["Deployment", "Deployments", "Route", "VersionState", "decode_mark", "list_of", "version_in", "version_of"]
