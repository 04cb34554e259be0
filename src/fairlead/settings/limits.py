"""The limits on what a request may carry, under the names and with the defaults of Temporal's server."""

from fairlead.core.partitions import NAME_CHARACTERS_MAX
from fairlead.settings.declaration import Reach, Setting
from fairlead.settings.kinds import Bool, Int

BLOB_SIZE_ERROR = Setting(
    key="limit.blobSize.error",
    kind=Int(1, 64 << 20),
    default=2 << 20,
    reach=Reach.NAMESPACE,
    about="Bytes that one payload, of a task for instance, may have; a larger one is refused.",
)
MAX_ID_LENGTH = Setting(
    key="limit.maxIDLength",
    kind=Int(1, NAME_CHARACTERS_MAX),
    default=NAME_CHARACTERS_MAX,
    reach=Reach.GLOBAL,
    about="Characters that an id or a name given by a user may have. Stores have room for no more than the default.",
)
MAX_CONCURRENT_BATCH_OPERATIONS = Setting(
    key="frontend.MaxConcurrentBatchOperationPerNamespace",
    kind=Int(0, 1000),
    default=1,
    reach=Reach.NAMESPACE,
    about="Batch jobs of a namespace that may run at a time; another one is refused.",
)
WORKFLOW_PAUSE_ENABLED = Setting(
    key="frontend.WorkflowPauseEnabled",
    kind=Bool(),
    default=False,
    reach=Reach.NAMESPACE,
    about="Whether workflows can be paused. Workers get no workflow task or activity of one that is.",
)
