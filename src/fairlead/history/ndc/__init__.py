"""Replication across clusters: applies event batches of other clusters to the runs of this cluster."""
