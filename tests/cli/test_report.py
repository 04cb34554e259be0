"""How a command's answer looks to people."""

import pytest

from fairlead.cli.report import WIDTH_COLUMNS_WHEN_PIPED, Output, Report, Table, show


def test_what_is_too_long_for_its_column_goes_on_below_and_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [letter * WIDTH_COLUMNS_WHEN_PIPED for letter in "xyz"]
    show(
        Report("runs", "one", {}, [Table("runs", "", ("name", *"xyz"), [("a run", *ids)])]),
        output=Output.TABLE,
        plot=None,
    )
    shown = capsys.readouterr().out
    assert "a run" in shown
    assert [shown.count(letter) - 1 for letter in "xyz"] == [WIDTH_COLUMNS_WHEN_PIPED] * 3
