"""Prepared statements on one connection in libpq's pipeline mode: requests are sent without waiting for responses."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from fairlead.storage.tasks import OutcomeUnknown

# Seconds after the server's statement timeout after which the connection is given up.
ANSWER_GRACE_S = 2.0

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Row = tuple[Any, ...]
# A parameter: text in PostgreSQL's text format, or bytes in its binary format.
Parameter = str | bytes | None

_OK = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that each connection prepares once; parameters are `$1`, `$2` and so on, with casts."""

    name: str
    text: str


@dataclass(slots=True, eq=False)
class _Sent:
    """A request without a response yet."""

    answer: asyncio.Future[list[Row]]
    deadline_s: float
    # Name of the statement that this request prepares; None when it is prepared.
    preparing: str | None = None
    rows: pq.abc.PGresult | None = None
    failure: psycopg.Error | None = None


class Pipeline:
    """Sends requests over one connection; each is a transaction, and they take effect in the order of sending.

    If the connection is lost, or a response takes too long, all requests without a response fail with
    `OutcomeUnknown`, and the pipeline can't be used any more.
    """

    def __init__(self, connection: Connection, *, prepared: set[str], statement_s_max: float) -> None:
        """The caller uses the connection for no other purpose until `release`. `prepared` belongs to the connection."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._answer_s_max = statement_s_max + ANSWER_GRACE_S
        self._loop = asyncio.get_running_loop()
        self._prepared = prepared
        self._sent: deque[_Sent] = deque()
        self._transformer = Transformer(connection)
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = True
        self._is_writing = False
        self._socket = self._pgconn.socket
        self._pgconn.enter_pipeline_mode()
        self._loop.add_reader(self._socket, self._read)

    @property
    def is_open(self) -> bool:
        """False after the connection was lost or released."""
        return self._is_open

    def send(self, statement: Prepared, parameters: Sequence[Parameter]) -> asyncio.Future[list[Row]]:
        """Send a request; the future gets its rows in binary format, or PostgreSQL's error.

        A request that could not be sent fails like a request without a response.
        """
        sent = _Sent(self._loop.create_future(), self._loop.time() + self._answer_s_max)
        self._sent.append(sent)
        try:
            if statement.name not in self._prepared:
                self._pgconn.send_prepare(statement.name.encode(), statement.text.encode())
                self._prepared.add(statement.name)
                sent.preparing = statement.name
            self._pgconn.send_query_prepared(
                statement.name.encode(),
                [value.encode() if isinstance(value, str) else value for value in parameters],
                [pq.Format.BINARY if isinstance(value, bytes) else pq.Format.TEXT for value in parameters],
                pq.Format.BINARY,
            )
            self._pgconn.pipeline_sync()
        except psycopg.Error as failed:
            self._lose(f"the connection was lost, renew the lease: {failed}", failed)
            return sent.answer
        self._write()
        if self._timer is None and self._is_open:
            self._timer = self._loop.call_at(sent.deadline_s, self._check_deadline)
        return sent.answer

    def release(self) -> None:
        """Leave the pipeline mode, so that the connection can be used in other ways; no request may be open."""
        if not self._is_open:
            return
        self._forget_socket()
        if self._sent:
            self._fail_all("the pipeline was released", None)
            self._pgconn.finish()
            return
        self._pgconn.exit_pipeline_mode()

    def close(self) -> None:
        """Disconnect."""
        if self._is_open:
            self._lose("the store is closing", None)

    def _write(self) -> None:
        try:
            is_unsent = bool(self._pgconn.flush())
        except psycopg.Error as failed:
            self._lose(f"the connection was lost before the response, renew the lease: {failed}", failed)
            return
        if is_unsent and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._socket, self._write)
        elif self._is_writing and not is_unsent:
            self._is_writing = False
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            self._pgconn.consume_input()
            is_end = False
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is not None:
                    self._take(result)
                elif is_end:
                    break
                # None ends the results of one statement; a second None ends the results of the request.
                is_end = result is None
        except psycopg.Error as failed:
            self._lose(f"the connection was lost before the response, renew the lease: {failed}", failed)

    def _take(self, result: pq.abc.PGresult) -> None:
        if not self._sent:
            # The error of a server that disconnects; the next read finds the end of the connection.
            return
        sent = self._sent[0]
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            self._sent.popleft()
            self._finish(sent)
        elif result.status in _OK:
            sent.rows = None if sent.preparing else result
            sent.preparing = None
        elif sent.failure is None and result.status != pq.ExecStatus.PIPELINE_ABORTED:
            sent.failure = error_from_result(result)
            if sent.preparing:
                self._prepared.discard(sent.preparing)

    def _finish(self, sent: _Sent) -> None:
        if sent.answer.done():
            return
        if sent.failure is not None:
            sent.answer.set_exception(sent.failure)
        elif sent.rows is None:
            sent.answer.set_result([])
        else:
            self._transformer.set_pgresult(sent.rows)
            sent.answer.set_result(self._transformer.load_rows(0, sent.rows.ntuples, tuple))

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._sent or not self._is_open:
            return
        first_s = self._sent[0].deadline_s
        if first_s <= self._loop.time():
            self._lose(f"no response from PostgreSQL in {self._answer_s_max} s: renew the lease", None)
        else:
            self._timer = self._loop.call_at(first_s, self._check_deadline)

    def _forget_socket(self) -> None:
        self._is_open = False
        self._loop.remove_reader(self._socket)
        if self._is_writing:
            self._loop.remove_writer(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lose(self, why: str, cause: BaseException | None) -> None:
        if not self._is_open:
            return
        self._forget_socket()
        self._pgconn.finish()
        self._fail_all(why, cause)

    def _fail_all(self, why: str, cause: BaseException | None) -> None:
        for sent in self._sent:
            if not sent.answer.done():
                failure = OutcomeUnknown(why)
                # The server may have sent the reason before it disconnected.
                failure.__cause__ = sent.failure or cause
                sent.answer.set_exception(failure)
        self._sent.clear()
