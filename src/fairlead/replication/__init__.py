"""Replication between clusters: pulls the streams of other clusters, and serves their requests."""
