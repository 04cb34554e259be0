"""The composition root: the only place where services are made, and where it is decided in which order they begin."""

from fairlead.server.clients import connect, new_caller
from fairlead.server.host import Host
from fairlead.server.local_cluster import LocalCluster
from fairlead.server.process import Server
from fairlead.server.stores import CannotOpenStore, open_store

__all__ = ["CannotOpenStore", "Host", "LocalCluster", "Server", "connect", "new_caller", "open_store"]
