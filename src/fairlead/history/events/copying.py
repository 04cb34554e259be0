"""Fields taken over from one message of the API to another: those that are set, and no others."""

from collections.abc import Iterable

from google.protobuf.message import Message


def copy_set(source: Message, target: Message, names: Iterable[str]) -> None:
    """Copy the messages of these names; unset ones stay unset, which reads differently from empty ones."""
    for name in names:
        if source.HasField(name):
            getattr(target, name).CopyFrom(getattr(source, name))
