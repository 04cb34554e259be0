"""Memory that an idle connection and a waiting call take."""

import asyncio
import gc
import socket
import tracemalloc

from hpack import Encoder

from fairlead.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame
from fairlead.rpc.message import framed
from tests.rpc.served import WAIT, request_headers, serving, until

CONNECTIONS = 100
STREAMS = 1_000
CONNECTION_BYTES_MAX = 12_000
STREAM_BYTES_MAX = 4_000


async def test_idle_connections_and_waiting_calls_take_little_memory_and_release_it() -> None:
    async with serving() as served:
        host, _, port = served.address.rpartition(":")
        tracemalloc.start()
        try:
            begin_bytes = _held_bytes()
            peers = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
            for peer in peers:
                peer.sendall(PREFACE + frame(SETTINGS, 0, 0))
            await until(lambda: served.server.stats().connections == CONNECTIONS)
            # The server answers each preface before its memory is measured.
            await asyncio.sleep(0.05)
            connected_bytes = _held_bytes()
            assert (connected_bytes - begin_bytes) / CONNECTIONS < CONNECTION_BYTES_MAX

            encoder = Encoder()
            for number in range(STREAMS):
                block = encoder.encode(request_headers(WAIT, [("grpc-timeout", "70S")]))
                call = frame(HEADERS, END_HEADERS, 2 * number + 1, block)
                peers[0].sendall(call + frame(DATA, END_STREAM, 2 * number + 1, framed(bytes(100))))
            await until(lambda: served.handlers.begun == STREAMS)
            waiting_bytes = _held_bytes()
            assert (waiting_bytes - connected_bytes) / STREAMS < STREAM_BYTES_MAX

            for peer in peers:
                peer.close()
            await served.until_idle()
            await until(lambda: served.server.stats().connections == 0)
            # Sets and dictionaries keep their largest number of buckets.
            assert _held_bytes() - begin_bytes < 300_000
        finally:
            tracemalloc.stop()


def _held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
