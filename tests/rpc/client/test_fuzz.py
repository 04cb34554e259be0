"""For any bytes that a server sends, every call ends, nothing is leaked, and memory stays bounded."""

import asyncio
import random
from typing import Any

import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.rpc.client import CallFailed, Channel, ChannelLimits, new_deadlines
from fairlead.rpc.client.call import ClientCall
from fairlead.rpc.client.connection import ClientConnection
from fairlead.rpc.client.request_head import RequestHeads
from fairlead.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADERS,
    SETTING,
    SETTING_INITIAL_WINDOW,
    SETTING_STREAMS_MAX,
    SETTINGS,
    ErrorCode,
    frame,
    goaway,
    rst_stream,
    window_update,
)
from fairlead.rpc.header_block import literal
from fairlead.rpc.header_blocks import HEADERS_BLOCK
from fairlead.rpc.message import framed
from fairlead.rpc.stream import Messages
from tests.rpc.client.faking import (
    OK_BLOCK,
    PATH,
    RESPONSE_BLOCK,
    answer,
    call,
    channel_to,
    faking,
    headers,
    silence,
    taken,
    trailers,
)
from tests.rpc.served import Peer

LIMITS = ChannelLimits(message_bytes_max=50_000, receive_bytes_max=100_000, send_bytes_max=200_000)
CALLS = 6

stream_ids = st.sampled_from([0, 1, 1, 3, 3, 5, 7, 9, 11, 13, 2, 2**31 - 1])
numbers = st.sampled_from([0, 1, 5, 65_535, 2**31 - 1])
blocks = st.sampled_from(
    [
        RESPONSE_BLOCK,
        RESPONSE_BLOCK + OK_BLOCK,
        OK_BLOCK,
        literal(b"grpc-status", b"9") + literal(b"x-bin", b"AA"),
        literal(b":status", b"503"),
        literal(b":status", b"100"),
        b"\x40\x01a\x01b",
        b"\xbe",
        b"",
    ]
) | st.binary(max_size=40)
payloads = st.one_of(
    st.sampled_from([framed(b"answer"), framed(b"a") * 3, b"\x00\x00\x00", framed(bytes(40_000))[:16_000]]),
    st.binary(max_size=60),
    st.integers(0, FRAME_BYTES_MAX).map(bytes),
)
flags = st.sampled_from([0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM]) | st.integers(0, 255)
codes = st.sampled_from(list(ErrorCode))
open_ids = st.sampled_from([1, 3, 5, 7])


def begun(stream_id: int, sent_bytes: int, message_bytes: int) -> bytes:
    """An answer that begins well and is not whole yet; later frames may complete it."""
    message = framed(bytes(message_bytes))[:sent_bytes]
    parts = (message[start : start + FRAME_BYTES_MAX] for start in range(0, len(message), FRAME_BYTES_MAX))
    return headers(stream_id) + b"".join(frame(DATA, 0, stream_id, part) for part in parts)


frames = st.one_of(
    st.builds(begun, open_ids, st.sampled_from([1, 5, 100, 20_000, 49_000]), st.sampled_from([0, 50, 30_000, 49_000])),
    st.builds(trailers, open_ids),
    st.builds(answer, stream_ids),
    st.builds(lambda stream_id, message: answer(stream_id, message, HEADERS_BLOCK), stream_ids, st.binary(max_size=9)),
    st.builds(lambda stream_id, block, flag: frame(HEADERS, flag, stream_id, block), stream_ids, blocks, flags),
    st.builds(lambda stream_id, data, flag: frame(DATA, flag, stream_id, data), stream_ids, payloads, flags),
    st.builds(rst_stream, stream_ids, codes),
    st.builds(goaway, stream_ids, codes),
    st.builds(window_update, stream_ids, numbers),
    st.builds(
        lambda name, value: frame(SETTINGS, 0, 0, SETTING.pack(name, value)),
        st.sampled_from([SETTING_STREAMS_MAX, SETTING_INITIAL_WINDOW, 5, 6, 9]),
        numbers,
    ),
    st.builds(
        frame,
        st.integers(0, 12),
        flags,
        stream_ids,
        payloads,
    ),
    st.binary(max_size=30),
)
# Each chunk, and the event after it: none, the client cancels or opens a call, or the transport pauses or resumes.
steps = st.lists(
    st.tuples(
        st.lists(frames, max_size=4).map(b"".join), st.sampled_from(["", "", "cancel", "open", "pause", "resume"])
    ),
    max_size=12,
)


class FakeTransport(asyncio.Transport):
    """Takes everything, and remembers only how much."""

    def __init__(self) -> None:
        super().__init__()
        self.written_bytes = 0
        self.is_cut = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written_bytes += len(data)

    def close(self) -> None:
        self.is_cut = True

    def abort(self) -> None:
        self.is_cut = True

    def is_closing(self) -> bool:
        return self.is_cut

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Client:
    """One connection without a socket, with calls of both kinds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.transport = FakeTransport()
        self.loop = loop
        self.heads = RequestHeads("test", is_encrypted=False)
        self.connection = ClientConnection(
            LIMITS,
            loop=loop,
            log=structlog.get_logger(),
            keepalive_s=1_000.0,
            deadlines=new_deadlines(),
            on_change=lambda _: None,
        )
        self.connection.connection_made(self.transport)
        self.connection.data_received(frame(SETTINGS, 0, 0))
        self.calls: list[tuple[ClientCall, asyncio.Future[Any]]] = []

    def open(self) -> None:
        head, _ = self.heads.head(PATH)
        number = len(self.calls)
        request = bytes([5, 100_000 // 3, 40_000][number % 3] if number % 3 else 5)
        future: asyncio.Future[Any] = self.loop.create_future()
        if number % 4 == 3:
            messages = Messages(lambda window_bytes, _: self.connection.give(opened, window_bytes))
            opened = ClientCall(PATH, head, request, deadline_s=None, messages=messages)
            future = self.loop.create_task(self._read(messages))
        else:
            opened = ClientCall(PATH, head, request, deadline_s=self.loop.time() + 1_000, future=future)
        try:
            self.connection.open(opened)
        except CallFailed as failure:
            opened.fail(failure)
        self.calls.append((opened, future))

    async def _read(self, messages: Messages) -> int:
        return len([message async for message in messages])

    def cancel(self) -> None:
        for opened, future in self.calls:
            if not opened.is_done:
                future.cancel()
                self.connection.calls.cancel(opened)
                return

    async def run(self, chunks: list[tuple[bytes, str]]) -> None:
        failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: failures.append(context))
        for _ in range(CALLS):
            self.open()
        for chunk, action in chunks:
            self.connection.data_received(chunk)
            if action == "cancel":
                self.cancel()
            elif action == "open" and self.connection.is_ready:
                self.open()
            elif action == "pause":
                self.connection.pause_writing()
            elif action == "resume":
                self.connection.resume_writing()
            await asyncio.sleep(0)
            while self.connection._is_waiting:  # noqa: ASYNC110 - frames are handled in turns, without a notice
                await asyncio.sleep(0)
            # Apart from messages, which the limits bound, the connection keeps at most one frame.
            assert len(self.connection._rest) <= FRAME_BYTES_MAX + 9
            intake = self.connection._intake
            assert 0 <= intake._partial_bytes <= 2 * LIMITS.receive_bytes_max
            assert 0 <= self.connection._outbox.waiting_bytes <= 2 * LIMITS.send_bytes_max
            assert self.connection.calls._deadlines.number <= self.connection.calls.number
        self.connection.connection_lost(None)
        async with asyncio.timeout(10):
            await asyncio.gather(*(future for _, future in self.calls), return_exceptions=True)
        calls, outbox, intake = self.connection.calls, self.connection._outbox, self.connection._intake
        assert (calls.number, calls.streams) == (0, {})
        assert all(opened.is_done for opened, _ in self.calls)
        assert (outbox.waiting_bytes, intake._partial_bytes, intake._reserved_bytes) == (0, 0, 0)
        assert not any(self.connection.calls._deadlines._items.values())
        for _, future in self.calls:
            if not future.cancelled():
                error = future.exception()
                assert error is None or isinstance(error, CallFailed), error
        assert not failures, failures


@given(steps)
@settings(deadline=None)
def test_any_bytes_of_a_server_end_every_call_and_leak_nothing(chunks: list[tuple[bytes, str]]) -> None:
    async def run() -> None:
        await Client(asyncio.get_running_loop()).run(chunks)

    asyncio.run(run())


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(0, 2))
@settings(deadline=None)
def test_whole_answers_cut_anywhere_are_the_same_answers(cuts: list[int], kind: int) -> None:
    """The fast path for whole answers and the general path agree, wherever the bytes are cut."""
    separator = [b"", frame(0x20, 0, 0), window_update(0, 1)][kind]
    blocks = (HEADERS_BLOCK, RESPONSE_BLOCK, HEADERS_BLOCK)
    data = separator.join(
        answer(stream_id, b"answer %d" % stream_id, block) for stream_id, block in zip((1, 3, 5), blocks, strict=True)
    )

    async def run() -> None:
        client = Client(asyncio.get_running_loop())
        for _ in range(3):
            client.open()
        rest = data
        for cut in cuts:
            client.connection.data_received(rest[:cut])
            rest = rest[cut:]
        client.connection.data_received(rest)
        assert [future.result() for _, future in client.calls] == [b"answer 1", b"answer 3", b"answer 5"]
        assert client.connection.calls.number == 0
        client.connection.connection_lost(None)

    asyncio.run(run())


async def test_seeded_random_servers_never_hang_a_call_or_leak_a_connection() -> None:
    rng = random.Random(16)

    async def misbehave(peer: Peer) -> None:
        for _ in range(rng.randrange(4)):
            stream_id = await taken(peer)
            if rng.random() < 0.5:
                peer.send(answer(stream_id))
        data = b"".join(_random_frame(rng) for _ in range(rng.randrange(20)))
        for start in range(0, len(data), 1_000):
            peer.send(data[start : start + 1_000])
            await asyncio.sleep(0)
        if rng.random() < 0.5:
            await silence(peer)

    limits = {"reconnect_first_s": 0.001, "reconnect_max_s": 0.002, "keepalive_s": 0.05, "keepalive_timeout_s": 0.05}
    async with faking(misbehave) as fake, channel_to(fake.address, **limits) as channel:
        async with asyncio.timeout(120):
            for _ in range(60):
                await asyncio.gather(*(_one(channel, rng) for _ in range(8)))
        assert channel.stats().calls == 0


async def _one(channel: Channel, rng: random.Random) -> None:
    try:
        if rng.random() < 0.3:
            async for _ in channel.stream(PATH, b"x", timeout_s=1.0):
                pass
        else:
            await call(channel, bytes(rng.choice([10, 100_000])), timeout_s=rng.choice([0.01, 1.0, None]))
    except CallFailed:
        pass


def _random_frame(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(60))
    return frame(
        rng.randrange(11),
        rng.choice([0, 1, 4, 5, 8]),
        rng.choice([0, 1, 3, 5, 7, 9]),
        rng.choice([b"", OK_BLOCK, RESPONSE_BLOCK, framed(b"x"), rng.randbytes(rng.randrange(50)), bytes(8), bytes(4)]),
    )
