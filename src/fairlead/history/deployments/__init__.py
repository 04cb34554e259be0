"""Worker deployments: versions of workers, and which of them the tasks go to."""

from fairlead.history.deployments.registry import Deployments
from fairlead.history.deployments.routing import Route, decode_mark, list_of, version_of
from fairlead.history.deployments.state import Deployment, VersionState

__all__ = ["Deployment", "Deployments", "Route", "VersionState", "decode_mark", "list_of", "version_of"]
