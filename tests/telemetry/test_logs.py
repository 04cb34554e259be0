import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from fairlead.telemetry import InvalidLogSetting, configure_logs, get_log
from fairlead.telemetry.log_limit import SAME_EVENTS_MAX
from fairlead.telemetry.logs import TRACEBACK_LINES_MAX
from fairlead.telemetry.redaction import REDACTED

NOW_S = 1_767_323_045.25


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    structlog.reset_defaults()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def configured(level: str = "info", log_format: str = "json", *, now_s: float = NOW_S) -> io.StringIO:
    stream = io.StringIO()
    configure_logs(level, log_format, stream=stream, clock=lambda: now_s)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_the_event_and_its_fields() -> None:
    stream = configured()
    get_log("matching.engine").info("partition loaded", task_queue="orders", partition=3)
    assert stream.getvalue().endswith("\n")
    (line,) = lines(stream)
    assert list(line.items()) == [
        ("time", "2026-01-02T03:04:05.250000Z"),
        ("level", "info"),
        ("logger", "matching.engine"),
        ("event", "partition loaded"),
        ("task_queue", "orders"),
        ("partition", 3),
    ]


def test_a_log_can_be_created_before_the_configuration() -> None:
    log = get_log("early")
    stream = configured()
    log.info("later")
    assert [line["event"] for line in lines(stream)] == ["later"]


def test_only_warnings_are_shown_on_standard_error_before_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    log = get_log("early")
    log.info("quiet")
    log.warning("loud")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert json.loads(shown.err)["event"] == "loud"


def test_lines_below_the_configured_level_are_left_out() -> None:
    stream = configured("warning")
    log = get_log("x")
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(log, level)("said")
    assert [line["level"] for line in lines(stream)] == ["warning", "error", "critical"]


def test_a_terminal_gets_console_lines_and_a_file_gets_json() -> None:
    terminal, file = Terminal(), io.StringIO()
    configure_logs("info", "auto", stream=terminal)
    get_log("x").info("hello", count=1)
    configure_logs("info", "auto", stream=file)
    get_log("x").info("hello", count=1)
    assert "\x1b[" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")
    assert json.loads(file.getvalue())["count"] == 1


def test_console_lines_have_no_colours_in_a_file() -> None:
    stream = configured(log_format="console")
    get_log("x").info("hello", text="two words")
    line = "2026-01-02T03:04:05.250000Z [info     ] hello                          [x] text='two words'\n"
    assert stream.getvalue() == line


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_secrets_and_payloads_are_not_logged(log_format: str) -> None:
    stream = configured(log_format=log_format)
    secret = "hunter2"  # noqa: S105 - not a real password
    log = get_log("x").bind(password=secret)
    log.info(
        f"connecting to postgresql://app:{secret}@db/x",
        dsn=f"host=db user={secret}",
        url=f"http://u:{secret}@host",
        nested={"headers": {"Authorization": secret}},
        payload=secret.encode(),
        task=(1, secret.encode()),
    )
    log.error("failed", held=secret.encode(), exc_info=ValueError(f"password={secret}"))
    assert secret not in stream.getvalue()
    assert "[7 bytes]" in stream.getvalue()
    assert REDACTED in stream.getvalue()


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_does_not_contain_the_values_of_variables(log_format: str) -> None:
    stream = configured(log_format=log_format)

    def fail(number: int) -> None:
        payload = f"payload {number}"
        if payload:
            raise ValueError("failed")

    try:
        fail(4711)
    except ValueError as failure:
        get_log("x").error("reported", exc_info=failure)
    assert "ValueError: failed" in stream.getvalue()
    assert "in fail" in stream.getvalue()
    assert "payload 4711" not in stream.getvalue()


def test_an_exception_is_one_json_line() -> None:
    stream = configured()
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        get_log("x").exception("failed", number=1)
    (line,) = lines(stream)
    assert (line["level"], line["event"], line["number"]) == ("error", "failed", 1)
    reported = str(line["exception"]).splitlines()
    assert reported[0] == "Traceback (most recent call last):"
    assert reported[-1] == "ZeroDivisionError: integer division or modulo by zero"


def test_a_long_traceback_keeps_its_end() -> None:
    stream = configured()
    failure = ValueError("\n".join(str(number) for number in range(1000)))
    get_log("x").error("failed", exc_info=failure)
    reported = str(lines(stream)[0]["exception"]).splitlines()
    assert len(reported) == TRACEBACK_LINES_MAX
    assert reported[-1] == "999"


def test_a_field_cannot_replace_level_time_or_logger() -> None:
    stream = configured()
    get_log("x").info("event", level="low", time=5, logger="mine")
    (line,) = lines(stream)
    assert (line["level"], line["logger"], line["time"]) == ("info", "x", "2026-01-02T03:04:05.250000Z")


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_value_cannot_forge_a_line(log_format: str) -> None:
    stream = configured(log_format=log_format)
    get_log("x").info("one\nforged", field="two\nforged\x1b[2J", nested=["three\nforged"])
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


def test_the_same_event_is_logged_ten_times_a_second_and_the_next_line_has_the_suppressed_count() -> None:
    stream, now_s = io.StringIO(), [NOW_S]
    configure_logs("info", "json", stream=stream, clock=lambda: now_s[0])
    log = get_log("x")
    for number in range(SAME_EVENTS_MAX + 5):
        log.info("again", number=number)
    log.info("another")
    log.warning("again")
    get_log("y").info("again")
    assert len(lines(stream)) == SAME_EVENTS_MAX + 3
    now_s[0] += 1
    log.info("again", number=99)
    last = lines(stream)[-1]
    assert (last["number"], last["suppressed"]) == (99, 5)
    assert all("suppressed" not in line for line in lines(stream)[:-1])


def test_log_lines_of_libraries_have_the_same_format() -> None:
    stream = configured()
    logging.getLogger("grpc._cython").warning("broken %s, password=%s", "pipe", "hunter2")
    logging.getLogger("asyncio").log(25, "between the levels")
    logging.getLogger("asyncio").debug("too little")
    logging.getLogger("asyncio").error("failed", exc_info=OSError("gone"))
    # Call the handler directly: pytest's own handlers raise an error for such a record.
    wrong = logging.LogRecord("wrong", logging.ERROR, "file", 1, "no %d", ("number",), None)
    logging.getLogger().handlers[-1].handle(wrong)
    found = [(line["level"], line["logger"], line["event"], line["message"]) for line in lines(stream)]
    assert found == [
        ("warning", "library", "grpc._cython", f"broken pipe, password={REDACTED}"),
        ("info", "library", "asyncio", "between the levels"),
        ("error", "library", "asyncio", "failed"),
        ("error", "library", "wrong", "no %d"),
    ]
    assert "OSError: gone" in str(lines(stream)[2]["exception"])


def test_logs_can_be_configured_again() -> None:
    log = get_log("x")
    first = configured()
    log.info("before")
    second = configured()
    log.info("ours")
    logging.getLogger("asyncio").info("theirs")
    assert [line["event"] for line in lines(first)] == ["before"]
    assert [line["event"] for line in lines(second)] == ["ours", "asyncio"]


def test_a_stream_that_cannot_be_written_raises_no_error() -> None:
    closed = io.StringIO()
    closed.close()
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    for stream in (Broken(), closed):
        configure_logs("info", "auto", stream=stream)
        get_log("x").info("lost")
    configure_logs("info", "console", stream=ascii_only)
    get_log("x").info("kept", name="ü\ud800")
    ascii_only.seek(0)
    assert r"name=\xfc\ud800" in ascii_only.read()
    ascii_only.close()


def test_an_unknown_level_or_format_is_rejected() -> None:
    with pytest.raises(InvalidLogSetting, match="log level 'loud' is unknown: choose one of debug, info"):
        configure_logs("loud")
    with pytest.raises(InvalidLogSetting, match="log format 'xml' is unknown: choose one of auto, json, console"):
        configure_logs("info", "xml")


def test_a_process_logs_on_standard_error() -> None:
    program = "from fairlead.telemetry import *; configure_logs(); get_log('x').info('hello')"
    result = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == ""
    assert json.loads(result.stderr)["event"] == "hello"


def test_a_process_without_standard_error_can_run() -> None:
    program = (
        f"{sys.executable} -c \"from fairlead.telemetry import *; configure_logs(); get_log('x').info('hello')\" 2>&-"
    )
    assert subprocess.run(program, shell=True, check=False).returncode == 0  # noqa: S602 - our own program
