"""Settings of Nexus operations, with the names and defaults of Temporal's server."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Bool

STANDALONE_ENABLED = Setting(
    key="nexusoperation.enableStandalone",
    kind=Bool(),
    default=False,
    reach=Reach.NAMESPACE,
    about="Whether clients can start Nexus operations without a workflow.",
)
ACTIVITY_CALLBACKS_ENABLED = Setting(
    key="activity.enableCallbacks",
    kind=Bool(),
    default=False,
    reach=Reach.NAMESPACE,
    about="Whether standalone activities accept completion callbacks, so that they can back Nexus operations.",
)
UPDATE_CALLBACKS_ENABLED = Setting(
    key="history.enableUpdateCallbacks",
    kind=Bool(),
    default=False,
    reach=Reach.NAMESPACE,
    about="Whether workflow updates accept completion callbacks, so that they can back Nexus operations.",
)
SYSTEM_ENDPOINT_ENABLED = Setting(
    key="history.enableSignalWithStartFromWorkflow",
    kind=Bool(),
    default=False,
    reach=Reach.NAMESPACE,
    about="Whether workflows can signal-with-start other workflows through the server's own Nexus endpoint.",
)
