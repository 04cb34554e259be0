"""Class data sharing archive of Spark's classes."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import xxhash
from pyspark import __file__ as pyspark_file
from pyspark import __version__ as spark_version

from fairlead.pipeline.java import Java

# Seconds for Java to exit; its first exit also writes the archive of its classes.
ARCHIVE_WAIT_S_MAX = 120.0
DRAFT_AGE_S_MAX = 3600.0
# Option of Java that writes an archive when Java ends.
WRITES_ARCHIVE = "-XX:ArchiveClassesAtExit="


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """A class data sharing archive of Spark's classes, written by the first run: later runs start in half the time."""

    file: Path
    draft: Path | None

    @staticmethod
    def of(java: Java, cache: Path) -> "ClassArchive | None":
        """The archive in the cache, or the draft of one; None if the cache can't be written."""
        # Java accepts an archive only with the classes that it was made from.
        digest = xxhash.xxh32_hexdigest(f"{java.home} {java.version} {pyspark_file}".encode())
        file = cache / f"spark-{spark_version}-{digest}.jsa"
        if file.exists():
            return ClassArchive(file, None)
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        if not os.access(cache, os.W_OK):
            return None
        # Remove drafts of killed processes.
        for draft in cache.glob(f"{file.name}.*"):
            with contextlib.suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - DRAFT_AGE_S_MAX:
                    draft.unlink()
        return ClassArchive(file, file.with_name(f"{file.name}.{os.getpid()}"))

    @property
    def java_options(self) -> list[str]:
        """Options that make Java use the archive, or write it when Java exits."""
        if self.draft is not None:
            return [f"{WRITES_ARCHIVE}{self.draft}"]
        return [f"-XX:SharedArchiveFile={self.file}"]

    def keep(self) -> None:
        """Install the archive that Java wrote at exit, unless another process has done so."""
        if self.draft is not None and self.draft.exists():
            self.draft.replace(self.file)

    def discard(self) -> None:
        """Remove the draft of a Java process that was killed: it may be incomplete."""
        if self.draft is not None:
            self.draft.unlink(missing_ok=True)
