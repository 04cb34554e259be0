"""The entry points of the commands `fairlead` and `fairlead-test-server`."""

import os
import sys

from fairlead import __version__


def main() -> None:
    """Run the command; `--version` needs nothing but this module."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"fairlead {__version__}\n")
        return
    keep_bytecode()
    from fairlead.cli.commands import run  # noqa: PLC0415 - see above

    run()


def run_test_server() -> None:
    """Run `fairlead-test-server`."""
    keep_bytecode()
    from fairlead.cli.test_server import main as run  # noqa: PLC0415 - see above

    run()


def keep_bytecode() -> None:
    """Make Python keep bytecode in the user's cache if it can't write it beside the sources.

    Otherwise a read-only installation without bytecode is compiled at every start, which takes four times as long as
    loading the bytecode. When this runs, Python has already tried to write the bytecode of this module.
    """
    cached = __spec__.cached
    if sys.dont_write_bytecode or sys.pycache_prefix is not None or cached is None or os.path.exists(cached):  # noqa: PTH110
        return
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - pathlib takes 3 ms
    folder = os.path.join(cache, "fairlead", "bytecode")  # noqa: PTH118
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    except OSError:
        return
    if os.access(folder, os.W_OK):
        sys.pycache_prefix = folder
