"""The jobs, one a module: each reads tables, composes stages and writes tables."""
