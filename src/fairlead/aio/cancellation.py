"""Distinguishes a cancellation of the running task from the cancellation of something that it awaits."""

import asyncio


def is_cancelled() -> bool:
    """Whether the running task itself was cancelled, not only something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
