"""Storage contracts, and the stores that implement them: memory, sqlite, postgres."""
