"""The composition root: the only package that creates services and defines the order in which they start."""

from fairlead.matching.connection import new_caller
from fairlead.server.host import Host
from fairlead.server.local_cluster import LocalCluster
from fairlead.server.process import Server
from fairlead.server.stores import CannotOpenStore, open_store

__all__ = ["CannotOpenStore", "Host", "LocalCluster", "Server", "new_caller", "open_store"]
