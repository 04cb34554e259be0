"""A simulation in another process, to show that a seed decides everything."""

import os
import subprocess
import sys
from pathlib import Path


def digest_in_another_process(world: str, seed: int, *, hash_seed: str) -> str:
    """The digest of a seed's transcript, with other string hashes, object addresses and wall-clock times."""
    ran = subprocess.run(  # noqa: S603 - the running Python
        [sys.executable, "-c", f"from {world} import simulate; print(simulate({seed}).digest)"],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()
