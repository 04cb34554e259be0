"""Incremental runs: which rows of a derived table must be computed again, and how they replace the old ones."""
