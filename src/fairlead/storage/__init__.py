"""One contract, several stores: memory, sqlite, postgres."""
