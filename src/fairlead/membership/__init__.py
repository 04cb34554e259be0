"""Cluster membership: live hosts, the hash ring that places partitions and shards on them, change notifications."""
