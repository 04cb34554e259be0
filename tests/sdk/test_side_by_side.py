"""The same SDK programs leave the same histories, descriptions, answers and errors on Fairlead and on the reference."""

import pytest

from tests.sdk.catalogue import PROGRAMS
from tests.sdk.conftest import SideBySide
from tests.sdk.side_by_side import REBUILT, compared

# Maximum number of differences shown per program and place.
_SHOWN_MAX = 12


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_on_both_servers(name: str, side_by_side: SideBySide) -> None:
    side_by_side.wait_for(name)
    found = compared(side_by_side.folder, name)
    assert not found, f"{len(found)} differences\n" + "\n".join(str(each) for each in found[:_SHOWN_MAX])


def test_the_state_of_every_run_equals_the_state_rebuilt_from_its_events(side_by_side: SideBySide) -> None:
    side_by_side.wait_for_the_end()
    found = (side_by_side.folder / REBUILT).read_text()
    assert found.isdecimal(), found
