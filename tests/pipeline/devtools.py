"""Chromium's DevTools protocol over pipes: commands, their responses, and events."""

import fcntl
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

Event = dict[str, Any]

_READ_BYTES = 1 << 16
# Lowest file descriptor for our ends of the pipes: Chromium reads commands from 3 and writes to 4.
_DESCRIPTOR_MIN = 10
_CLOSE_S_MAX = 10.0


class DevTools:
    """One browser; `events` has all events in the order of their arrival."""

    def __init__(self, process: "subprocess.Popen[bytes]", commands: int, answers: int, *, end_s: float) -> None:
        self._process = process
        self._commands = commands
        self._answers = answers
        self._end_s = end_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(answers, selectors.EVENT_READ)
        self._data = b""
        self._last_id = 0
        self.events: list[Event] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> int:
        """Send a command; returns its id."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        return self._last_id

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its response."""
        asked = self.send(method, session, **parameters)
        while True:
            message = self._receive()
            if message.get("id") == asked:
                assert "error" not in message, (method, message["error"])
                answer: dict[str, Any] = message["result"]
                return answer

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Receive events until the condition holds."""
        while not is_so():
            self._receive()

    def _receive(self) -> Event:
        """Receive the next message; an event is also appended to `events`."""
        while b"\0" not in self._data:
            left_s = self._end_s - time.monotonic()
            assert left_s > 0, "Chromium did not answer in time"
            assert self._process.poll() is None, "Chromium has ended"
            if self._selector.select(min(left_s, 1.0)):
                self._data += os.read(self._answers, _READ_BYTES)
        line, _, self._data = self._data.partition(b"\0")
        message: Event = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message


@contextmanager
def devtools(command: Sequence[str], *, within_s: float) -> Iterator[DevTools]:
    """Start a Chromium that reads its commands from a pipe; it is stopped when the block ends."""
    (their_input, our_output), (our_input, their_output) = os.pipe(), os.pipe()
    ours = [_moved(descriptor) for descriptor in (our_output, our_input)]
    theirs = [_moved(descriptor) for descriptor in (their_input, their_output)]
    redirect = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
    process = subprocess.Popen(
        ["bash", "-c", redirect, "bash", *command, "--remote-debugging-pipe"],  # noqa: S607
        pass_fds=theirs,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for descriptor in theirs:
        os.close(descriptor)
    browser = DevTools(process, *ours, end_s=time.monotonic() + within_s)
    try:
        yield browser
    finally:
        with suppress(OSError):
            browser.send("Browser.close")
        try:
            process.wait(_CLOSE_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for descriptor in ours:
            os.close(descriptor)


def _moved(descriptor: int) -> int:
    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTOR_MIN)
    os.close(descriptor)
    return high
