"""One run of `fairlead pipeline all` over synthetic journals, for all tests that only look at its lake."""

import json
import os
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from fairlead.cli.pipeline.runner import EXIT_ALARM
from fairlead.pipeline.synth.journals import JournalManifest, read_manifest
from tests.pipeline.browser import Look, look_at

FAIRLEAD = (sys.executable, "-m", "fairlead", "pipeline")
SEED = 4
# Half a day of traffic: with less of it, no flood starves others.
SCALE = 0.5
# Seconds between the ingest and the reconcile of this run, at most: after that, late events count as lost. Synthetic
# defects are two hours old.
GRACE_S = 3600


class Run:
    """Writes the journals and runs all jobs."""

    def __init__(self, folder: Path) -> None:
        self.journal, self.lake = folder / "journal", folder / "lake"
        self.page = folder / "page.html"
        subprocess.run(
            [*FAIRLEAD, "synth", "--journal", self.journal, "--seed", str(SEED), "--scale", str(SCALE)], check=True
        )
        self.manifest: JournalManifest = read_manifest(self.journal)
        histories = self.manifest.histories
        versions = [f"--initial-version={name}={version}" for name, version in histories.initial_versions.items()]
        where = ("--journal", self.journal, "--lake", self.lake, "--report", self.page)
        rules = (f"--grace={GRACE_S}", f"--increment={histories.increment}", *versions)
        self.done = subprocess.run(
            [*FAIRLEAD, "all", *where, *rules, "-o", "json"],
            env=os.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert self.done.returncode in (0, EXIT_ALARM), self.done.stderr
        self.summaries: dict[str, dict[str, Any]] = {one["job"]: one for one in json.loads(self.done.stdout)}
        self._folder = folder

    @cached_property
    def look(self) -> Look:
        """The page in a browser."""
        return look_at(self.page, self._folder)
