"""Validates, completes and changes the options of a standalone activity."""

from collections.abc import Sequence

from google.protobuf.message import Message
from temporalio.api.activity.v1 import ActivityOptions

from fairlead.api.errors import InvalidArgument
from fairlead.history.entities.standalone_activities.responses import options_answer
from fairlead.history.messages.activity_options import Options, read_options


def merge_options(
    present: Options, wanted: ActivityOptions, paths: Sequence[str], *, activity_id: str, activity_type: str
) -> Options:
    """The present options, with the options at `paths` replaced."""
    merged = options_answer(present)
    for path in paths:
        name, _, inner = path.partition(".")
        if not inner:
            _copy_field(wanted, merged, name)
        elif wanted.HasField(name) or merged.HasField(name):  # type: ignore[arg-type]
            _copy_field(getattr(wanted, name), getattr(merged, name), inner)
    if not merged.task_queue.name:
        raise InvalidArgument("taskQueue is not set")
    return read_options(merged, task_queue=merged.task_queue.name, activity_id=activity_id, activity_type=activity_type)


def _copy_field(source: Message, target: Message, name: str) -> None:
    """Copy one field; clear it if the source does not have it."""
    field = source.DESCRIPTOR.fields_by_name[name]
    target.ClearField(name)
    if field.is_repeated:
        getattr(target, name).extend(getattr(source, name))
    elif field.message_type is not None:
        if source.HasField(name):
            getattr(target, name).CopyFrom(getattr(source, name))
    else:
        setattr(target, name, getattr(source, name))
