"""Upkeep of a lake: compaction of small batches, and retention. It needs no Spark session."""
