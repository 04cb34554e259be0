"""All settings there are: every declaration of the modules that hold them."""

from fairlead.settings import journal, limits, matching, membership, redirection, replication
from fairlead.settings.declaration import Setting
from fairlead.settings.registry import Registry

SETTINGS = Registry(
    declared
    for module in (journal, limits, matching, membership, redirection, replication)
    for declared in vars(module).values()
    if isinstance(declared, Setting)
)
