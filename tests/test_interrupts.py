"""Signal handling that processes inherit from the test suite."""

import subprocess
import sys
from pathlib import Path

# A program whose child prints whether SIGINT interrupts it.
IN_BACKGROUND = """
import subprocess, sys
from tests.conftest import take_interrupts
take_interrupts()
child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
sys.stdout.write(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
"""


def test_a_process_that_a_test_starts_can_be_interrupted_also_if_the_suite_runs_in_the_background() -> None:
    # A shell starts a background job of a script with SIGINT ignored.
    script = '"$0" -c "$1" & wait $!'
    done = subprocess.run(  # noqa: S603 - fixed arguments
        ["/bin/sh", "-c", script, sys.executable, IN_BACKGROUND],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n", done.stderr
