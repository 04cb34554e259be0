"""Settings about the deletion of namespaces, with the names and defaults of Temporal's server."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Bool, Texts

PROTECTED = Setting(
    key="worker.protectedNamespaces",
    kind=Texts(items_max=1000, characters_max=1000),
    default=(),
    reach=Reach.GLOBAL,
    about="Names of namespaces that can't be deleted.",
)
DELETES_ENDPOINT_TARGETS = Setting(
    key="frontend.allowDeleteNamespaceIfNexusEndpointTarget",
    kind=Bool(),
    default=False,
    reach=Reach.GLOBAL,
    about="Whether a namespace can be deleted while it is the target of a Nexus endpoint.",
)
