"""One run of `fairlead pipeline all` over synthetic journals, for all tests that only look at its lake."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from fairlead.cli.pipeline.runner import EXIT_ALARM
from fairlead.pipeline.synth.journals import JournalManifest, read_manifest
from tests.pipeline.browser import Look, look_at
from tests.pipeline.command import run_pipeline

SEED = 4
# Half a day of traffic: with less of it, no flood starves others.
SCALE = 0.5
# Seconds between the ingest and the reconcile of this run, at most: after that, late events count as lost. Synthetic
# defects are two hours old.
GRACE_S = 3600


class Run:
    """Writes the journals and runs all jobs."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.journal, self.lake = folder / "journal", folder / "lake"
        self.page = folder / "page.html"
        made = run_pipeline("synth", "--journal", self.journal, "--seed", SEED, "--scale", SCALE)
        assert (made.code, made.err) == (0, "")
        self.manifest: JournalManifest = read_manifest(self.journal)
        histories = self.manifest.histories
        versions = [f"--initial-version={name}={version}" for name, version in histories.initial_versions.items()]
        where = ("--journal", self.journal, "--lake", self.lake, "--report", self.page)
        rules = (f"--grace={GRACE_S}", f"--increment={histories.increment}", *versions)
        self.done = run_pipeline("all", *where, *rules, "-o", "json", spark=spark)
        assert self.done.code in (0, EXIT_ALARM), self.done.err
        self.summaries: dict[str, dict[str, Any]] = {one["job"]: one for one in json.loads(self.done.out)}
        self._folder = folder

    @cached_property
    def look(self) -> Look:
        """The page in a browser."""
        return look_at(self.page, self._folder)
