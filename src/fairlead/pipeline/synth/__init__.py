"""Synthetic journals for tests, benchmarks and demonstrations."""
