"""Live views: shared samplers, changes only, bounds, and their end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead.console import live
from fairlead.console.live import LiveViews, TooManyStreams, event
from tests.patience import until


async def next_event(stream: AsyncIterator[bytes]) -> bytes:
    """The next part of a stream that is not about the connection."""
    while True:
        part = await anext(stream)
        if not part.startswith((b"retry", b":")):
            return part


class Counting:
    """Counts its samples; `text` is what it shows."""

    def __init__(self) -> None:
        self.samples = 0
        self.text = "first"

    async def sample(self) -> bytes:
        self.samples += 1
        return event("live", self.text)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "INTERVAL_S_MIN", 0.01)


def test_an_event_of_several_lines_has_one_field_for_each() -> None:
    assert event("live", "a\nb\ud800") == b"event: live\ndata: a\ndata: b?\n\n"


async def test_viewers_of_one_view_share_one_sampler_and_get_changes_only() -> None:
    views, source = LiveViews(), Counting()
    first, second = (views.open(("v",), source.sample) for _ in range(2))
    assert await next_event(first) == await next_event(second) == event("live", "first")
    assert (views.samplers, views.streams) == (1, 2)
    before = source.samples
    await until(lambda: source.samples > before + 3)
    source.text = "second"
    assert await next_event(first) == await next_event(second) == event("live", "second")
    other = views.open(("w",), Counting().sample)
    await next_event(other)
    assert views.samplers == 2
    views.end()


async def test_a_view_without_viewers_is_not_sampled() -> None:
    views, source = LiveViews(), Counting()
    stream = views.open(("v",), source.sample)
    await next_event(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert (views.samplers, views.streams) == (0, 0)
    await asyncio.sleep(0)
    before = source.samples
    # Only time can show that nothing is sampled.
    await asyncio.sleep(0.1)
    assert source.samples == before


async def test_the_numbers_of_streams_and_of_views_are_bounded() -> None:
    views = LiveViews(streams_max=2, samplers_max=1)
    kept = views.open(("v",), Counting().sample)
    await next_event(kept)
    with pytest.raises(TooManyStreams):
        views.open(("w",), Counting().sample)
    await next_event(views.open(("v",), Counting().sample))
    with pytest.raises(TooManyStreams):
        views.open(("v",), Counting().sample)
    views.end()


async def test_a_sample_that_fails_is_reported_and_the_next_one_counts() -> None:
    views, source = LiveViews(), Counting()
    is_broken = True

    async def sample() -> bytes:
        if is_broken:
            raise ValueError("broken")
        return await source.sample()

    stream = views.open(("v",), sample)
    assert b"event: problem" in await next_event(stream)
    is_broken = False
    assert await next_event(stream) == event("live", "first")
    views.end()


async def test_the_end_of_the_server_ends_all_streams() -> None:
    views = LiveViews()
    stream = views.open(("v",), Counting().sample)
    await next_event(stream)
    views.end()
    assert [part async for part in stream] == []
    assert [part async for part in views.open(("v",), Counting().sample)] == []
