"""The base class of all messages between matching hosts and their clients."""

from msgspec import Struct


class Message(Struct, frozen=True, array_like=True):
    """Encoded by position: add fields only at the end, with a default."""
