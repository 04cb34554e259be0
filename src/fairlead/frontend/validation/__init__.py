"""Validation of requests, in the order and with the messages of Temporal's server."""
