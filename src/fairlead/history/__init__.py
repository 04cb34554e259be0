"""Runs workflows: the state of a run, what each event does to it, and the events that requests and commands make."""
