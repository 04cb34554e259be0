"""The jobs, one per module: each reads tables, composes stages and writes tables."""
