"""The limits on what a request may carry, under the names and with the defaults of Temporal's server."""

from fairlead.core.partitions import NAME_CHARACTERS_MAX
from fairlead.settings.declaration import Reach, Setting
from fairlead.settings.kinds import Int

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
