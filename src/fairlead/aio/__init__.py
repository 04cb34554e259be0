"""Helpers for asyncio: backoff with jitter, coalesced refreshes, background tasks and shared deadline timers."""
