"""Handlers of the requests to a loaded partition. Each gets the partition's manager and the request."""
