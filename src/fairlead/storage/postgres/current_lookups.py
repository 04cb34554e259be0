"""Look-ups of current runs, one for every start of a workflow; simultaneous look-ups share a statement."""

import asyncio
from typing import Final

import psycopg

from fairlead.storage.history import CurrentRun
from fairlead.storage.postgres.arrays import numbers, texts
from fairlead.storage.postgres.connections import Connections, Unstorable, translated
from fairlead.storage.postgres.pipeline import Pipeline, Prepared, Row
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable

# Number of look-ups in one statement, and of statements in flight at the same time.
LOOKUPS_A_STATEMENT_MAX: Final = 1_000
STATEMENTS_IN_FLIGHT_MAX: Final = 2
LOOKUPS_WAITING_MAX: Final = 10_000

# LIMIT makes the planner use the key for each look-up.
READ_CURRENTS: Final = Prepared(
    "fairlead_read_currents",
    """
    SELECT wanted.place, found.namespace_id, found.workflow_id, found.run_id, found.request_id, found.status,
        found.last_write_version
    FROM unnest($1::integer[], $2::text[], $3::text[])
            WITH ORDINALITY AS wanted (shard_id, namespace_id, workflow_id, place),
        LATERAL (
            SELECT * FROM history_currents AS current
            WHERE current.shard_id = wanted.shard_id AND current.namespace_id = wanted.namespace_id
                AND current.workflow_id = wanted.workflow_id
            LIMIT 1
        ) AS found
    """,
)


class _Lookup:
    """The look-up of one caller."""

    __slots__ = ("answer", "namespace_id", "shard_id", "workflow_id")

    def __init__(self, shard_id: int, namespace_id: bytes, workflow_id: bytes) -> None:
        self.shard_id = shard_id
        self.namespace_id = namespace_id
        self.workflow_id = workflow_id
        self.answer: asyncio.Future[CurrentRun | None] = asyncio.get_running_loop().create_future()


class CurrentLookups:
    """Finds the current runs of workflow ids; each result includes all commits that returned before the look-up."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._pipeline: Pipeline | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[_Lookup] = []
        self._in_flight = 0
        self._is_turn_due = False
        self._is_closing = False
        self._open = 0
        self._unused = asyncio.Event()
        self._unused.set()

    async def find(self, shard_id: int, namespace_id: str, workflow_id: str) -> CurrentRun | None:
        """The current run of a workflow id."""
        if self._is_closing:
            raise StoreUnavailable("the store is closing: nothing was changed")
        if self._open >= LOOKUPS_WAITING_MAX:
            raise StoreUnavailable(f"{self._open} look-ups wait, the limit is {LOOKUPS_WAITING_MAX}: try again later")
        try:
            lookup = _Lookup(shard_id, namespace_id.encode(), workflow_id.encode())
        except UnicodeEncodeError as wrong:
            raise Unstorable(f"{wrong.object!r} has no UTF-8 form: {wrong.reason}") from wrong
        self._waiting.append(lookup)
        self._open += 1
        self._unused.clear()
        self._schedule()
        try:
            return await lookup.answer
        finally:
            self._open -= 1
            if not self._open:
                self._unused.set()

    async def close(self) -> None:
        """Reject new look-ups, wait for the look-ups that have begun, and disconnect."""
        self._is_closing = True
        await self._unused.wait()
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._pipeline is not None:
            self._pipeline.close()

    def _schedule(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        while self._waiting and self._in_flight < STATEMENTS_IN_FLIGHT_MAX:
            pipeline = self._pipeline
            if pipeline is None or not pipeline.is_open:
                if self._connecting is None:
                    self._connecting = asyncio.create_task(self._connect())
                return
            lookups = self._waiting[:LOOKUPS_A_STATEMENT_MAX]
            del self._waiting[:LOOKUPS_A_STATEMENT_MAX]
            self._send(pipeline, lookups)

    def _send(self, pipeline: Pipeline, lookups: list[_Lookup]) -> None:
        self._in_flight += 1
        answer = pipeline.send(
            READ_CURRENTS,
            [
                numbers([lookup.shard_id for lookup in lookups]),
                texts([lookup.namespace_id for lookup in lookups]),
                texts([lookup.workflow_id for lookup in lookups]),
            ],
        )
        answer.add_done_callback(lambda done: self._answered(lookups, done))

    def _answered(self, lookups: list[_Lookup], answer: asyncio.Future[list[Row]]) -> None:
        self._in_flight -= 1
        failure = answer.exception()
        if failure is None:
            found = {place: CurrentRun(*row) for place, *row in answer.result()}
            for place, lookup in enumerate(lookups, start=1):
                if not lookup.answer.done():
                    lookup.answer.set_result(found.get(place))
        elif isinstance(failure, psycopg.DataError) and len(lookups) > 1 and self._pipeline is not None:
            # One of the ids can't be stored, so no row has it: send each look-up alone.
            for lookup in lookups:
                self._send(self._pipeline, [lookup])
        else:
            _fail(lookups, failure)
        if self._waiting:
            self._schedule()

    async def _connect(self) -> None:
        try:
            self._pipeline = await self._connections.open_pipeline()
        except Exception as failure:  # noqa: BLE001 - the waiting callers get the error
            lookups, self._waiting = self._waiting, []
            _fail(lookups, failure)
        finally:
            self._connecting = None
        self._schedule()


def _fail(lookups: list[_Lookup], failure: BaseException) -> None:
    for lookup in lookups:
        if lookup.answer.done():
            continue
        error: BaseException = failure
        if isinstance(failure, psycopg.Error):
            error = translated(failure)
        elif isinstance(failure, OutcomeUnknown | StoreUnavailable):
            error = StoreUnavailable(str(failure))
            error.__cause__ = failure
        lookup.answer.set_exception(error)
