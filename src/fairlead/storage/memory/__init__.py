"""Stores in memory, for tests and simulations: nothing survives a restart, and faults can be injected."""
