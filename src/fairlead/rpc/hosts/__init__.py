"""Calls between hosts: one interface, in process or over gRPC, with msgpack messages and typed errors."""
