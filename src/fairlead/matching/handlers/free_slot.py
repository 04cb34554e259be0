"""Handles reports that an activity has ended, in a task queue with a limit on running activities."""

from fairlead.matching.engine import Engine
from fairlead.matching.messages import FreeSlotRequest, FreeSlotResponse


async def note_free_slot(engine: Engine, request: FreeSlotRequest) -> FreeSlotResponse:
    """Try a parked task of the key; a partition that is not loaded has no parked tasks."""
    manager = engine.ready(request.partition)
    if manager is None:
        return FreeSlotResponse(1)
    manager.queue.dispatcher.note_free_slot(request.fairness_key)
    return FreeSlotResponse(manager.configs.config.read)
