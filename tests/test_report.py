"""Tables and text that commands print for people."""

import pytest

from fairlead.report import WIDTH_COLUMNS_WHEN_PIPED, DualCell, Output, Report, Table, printable, show


def test_text_that_is_too_long_for_its_column_is_wrapped_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [letter * WIDTH_COLUMNS_WHEN_PIPED for letter in "xyz"]
    show(
        Report("runs", "one", {}, [Table("runs", "", ("name", *"xyz"), [("a run", *ids)])]),
        output=Output.TABLE,
        plot=None,
    )
    shown = capsys.readouterr().out
    assert "a run" in shown
    assert [shown.count(letter) - 1 for letter in "xyz"] == [WIDTH_COLUMNS_WHEN_PIPED] * 3


HOSTILE = "q\x1b]0;owned\x07\x1b[2J\u202etxt\x9b31m\r"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders, Grüße 日本", "orders, Grüße 日本"),
        ("two\nlines", "two\nlines"),
        ("a\x1b[2Jb\x9b1m\x07\r", "a\\x1b[2Jb\\x9b1m\\x07\\r"),
        ("\u202egnp.exe\u2028\ud800", "\\u202egnp.exe\\u2028\\ud800"),
    ],
)
def test_characters_that_steer_a_terminal_are_shown_as_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_part_of_a_report_reaches_the_terminal_as_a_control_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    row = (HOSTILE, DualCell(HOSTILE, HOSTILE))
    tables = [Table("t", HOSTILE, ("name", HOSTILE), [row], note=HOSTILE), Table("u", HOSTILE, (), [], note=HOSTILE)]
    show(Report("queues", HOSTILE, {"name": HOSTILE}, tables), output=Output.TABLE, plot=None)
    shown = capsys.readouterr().out
    assert shown.count("owned") >= 6
    assert all(line.isprintable() for line in shown.splitlines())


def test_a_name_with_a_line_break_adds_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    name = "orders\nforged"
    tables = [Table("t", name, ("name", "both"), [(name, DualCell(name, name))])]
    show(Report("queues", name, {"name": name}, tables), output=Output.TABLE, plot=None)
    shown = capsys.readouterr().out
    assert shown.count("orders\\nforged") == 5
    assert not any(line.lstrip().startswith("forged") for line in shown.splitlines())
