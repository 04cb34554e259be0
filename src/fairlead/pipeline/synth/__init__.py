"""Made-up journals for tests, benchmarks and demonstrations."""
