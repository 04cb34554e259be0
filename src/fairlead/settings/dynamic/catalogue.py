"""Registry of all dynamic settings, collected from the modules that declare them."""

from fairlead.settings.dynamic import (
    authorization,
    connections,
    history,
    http,
    journal,
    limits,
    matching,
    matching_memory,
    membership,
    namespaces,
    nexus,
    quotas,
    redirection,
    replication,
)
from fairlead.settings.dynamic.declaration import Setting
from fairlead.settings.dynamic.registry import Registry
from fairlead.settings.dynamic.without_effect import WITHOUT_EFFECT

SETTINGS = Registry(
    (
        declared
        for module in (
            *(authorization, connections, history, http, journal, limits, matching),
            *(matching_memory, membership, namespaces, nexus, quotas, redirection, replication),
        )
        for declared in vars(module).values()
        if isinstance(declared, Setting)
    ),
    WITHOUT_EFFECT,
)
