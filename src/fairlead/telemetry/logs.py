"""Structured logs: each line on standard error is an event's name with its fields.

    log = get_log("matching.engine")
    log.info("partition loaded", task_queue="orders", partition=3)

The name of an event is a constant; values that vary are in its fields. The field names `time`, `level`, `logger`,
`event`, `exception` and `suppressed` are reserved.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from fairlead.core.errors import FixRequest
from fairlead.telemetry.log_limit import EventLimit
from fairlead.telemetry.redaction import redact_fields, redact_text

TRACEBACK_LINES_MAX = 100

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

# Field that holds a log's name until it is written as `logger`; structlog reserves that key until then.
_NAME = "log_name"

Log = FilteringBoundLogger


class LogFormat(StrEnum):
    """Format of a log line; `auto` is `console` on a terminal and `json` elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class InvalidLogSetting(FixRequest):
    """The log level or format is unknown."""


def get_log(name: str) -> Log:
    """Log of one part of Fairlead. Before logs are configured, it shows only warnings and errors."""
    if not structlog.is_configured():
        _configure_structlog(logging.WARNING, LogFormat.AUTO, None, time.time)
    return cast(Log, structlog.get_logger(**{_NAME: name}))


def configure_logs(
    level: str = "info",
    log_format: str = LogFormat.AUTO,
    *,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Log events of this level and above, ours and those of libraries, to `stream`, by default standard error."""
    if level not in LEVELS:
        raise InvalidLogSetting(f"log level {level!r} is unknown: choose one of {', '.join(LEVELS)}")
    if log_format not in set(LogFormat):
        raise InvalidLogSetting(f"log format {log_format!r} is unknown: choose one of {', '.join(LogFormat)}")
    _configure_structlog(LEVELS[level], LogFormat(log_format), stream, clock)
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _FromLibraries)]:
        root.removeHandler(handler)
    root.addHandler(_FromLibraries())
    root.setLevel(LEVELS[level])


def _configure_structlog(level: int, log_format: LogFormat, stream: TextIO | None, clock: Callable[[], float]) -> None:
    sink = _Sink(stream)
    is_console = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and sink.is_terminal)
    render: Processor = (
        structlog.dev.ConsoleRenderer(
            colors=sink.is_terminal,
            timestamp_key="time",
            sort_keys=False,
            # structlog's default shows the values of variables, which may include payloads.
            exception_formatter=structlog.dev.plain_traceback,
        )
        if is_console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        # The limit comes first, so that a suppressed event costs little.
        processors=[_Limited(EventLimit(clock)), _Written(clock), render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: sink,
        # Modules get their logs when they are imported; the configuration comes later.
        cache_logger_on_first_use=False,
    )


class _Sink:
    """Writes lines. A line that can't be written is lost: no request should fail because of its log."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def is_terminal(self) -> bool:
        """Whether the stream is a terminal."""
        stream = self._now()
        return stream is not None and not stream.closed and stream.isatty()

    def msg(self, line: str) -> None:
        """Write one line."""
        stream = self._now()
        if stream is None:
            return
        try:
            # Write text and line end in one call, so that lines of several threads do not mix.
            stream.write(f"{line}\n")
            stream.flush()
        except UnicodeEncodeError:
            self.msg(line.encode("ascii", "backslashreplace").decode())
        except (OSError, ValueError):
            return

    # structlog calls the method named like the level.
    debug = info = warning = error = critical = msg

    def _now(self) -> TextIO | None:
        # Look up `sys.stderr` every time, so that a redirection includes the log. It is None if it was closed.
        return sys.stderr if self._stream is None else self._stream


class _Limited:
    """Drops an event that comes too often."""

    def __init__(self, limit: EventLimit) -> None:
        self._limit = limit

    def __call__(self, _: WrappedLogger, level: str, event: EventDict) -> EventDict:
        suppressed = self._limit.take((event.get(_NAME), level, str(event["event"])))
        if suppressed is None:
            raise structlog.DropEvent
        if suppressed:
            event["suppressed"] = suppressed
        return event


class _Written:
    """Builds a line: time, level, logger and event, then the redacted fields, then the exception."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def __call__(self, _: WrappedLogger, level: str, event: EventDict) -> EventDict:
        now = datetime.fromtimestamp(self._clock(), UTC)
        head: EventDict = {
            "time": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": level,
            "logger": event.pop(_NAME, ""),
            "event": redact_text(str(event.pop("event"))),
        }
        failure = _failure(event.pop("exc_info", None))
        # `head` comes first in the line; it is merged again at the end, so that no field can replace its values.
        line = {**head, **redact_fields(event), **head}
        return {**line, "exception": failure} if failure else line


def _failure(given: object) -> str | None:
    """Format an exception with its traceback: lines of code, but no values of variables."""
    if given is True:
        given = sys.exc_info()
    if isinstance(given, tuple):
        given = given[1]
    if not isinstance(given, BaseException):
        return None
    lines = "".join(traceback.format_exception(given)).splitlines()
    # Keep the end: it has the error and the place where it was raised.
    return "\n".join(redact_text(line) for line in lines[-TRACEBACK_LINES_MAX:])


class _FromLibraries(logging.Handler):
    """Logs the records of libraries: the event is the name of the library's logger, the text is the field `message`."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = str(record.msg)
        # Levels may be any number: round down to one with a name.
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        get_log("library").log(level, record.name, message=message, exc_info=record.exc_info)
