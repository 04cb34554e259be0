"""`fairlead demo` as a user runs it: a short run, an interrupted one, and one that stays, without Spark."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.cli.processes import FAIRLEAD, MARK, left_behind, run
from tests.patience import CHECK_S, PATIENCE_S

# A module path in which importing Spark fails.
WITHOUT_SPARK = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else find(name, *rest)
from fairlead.cli.main import main
sys.argv[0] = "fairlead"
main()
"""
# Takes a minute on an idle machine, most of it in Spark.
WHOLE_S_MAX = 600.0
ENDED_S_MAX = PATIENCE_S


@pytest.mark.timeout(WHOLE_S_MAX + 10)
def test_a_short_demo_shows_the_tenants_and_ends_with_a_report(tmp_path: Path) -> None:
    mark = os.urandom(4).hex()
    done = subprocess.run(  # noqa: S603
        [FAIRLEAD, "demo", "--seconds", "5"],
        cwd=tmp_path,
        env={**os.environ, MARK: mark},
        capture_output=True,
        text=True,
        check=False,
        timeout=WHOLE_S_MAX,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Watch it in the console: http://127.0.0.1:" in done.stdout
    for tenant in ("acme", "globex", "initech", "hooli"):
        assert tenant in done.stdout
    for words in ("Graceful failover: west is active", "west is killed", "Forced failover: east is active"):
        assert words in done.stdout
    assert "workflows completed, once and right. Both clusters have the same" in done.stdout
    assert "All " in done.stdout
    assert "runs agree" in done.stdout
    page = tmp_path / "fairlead-demo" / "report.html"
    assert f"The report: {page.relative_to(tmp_path)}" in done.stdout
    text = page.read_text()
    # The report has workflows of the SDK with their payloads, so the journal was complete.
    assert "Order" in text
    assert "pack" in text
    assert (tmp_path / "fairlead-demo" / "lake" / "report.html").read_text() == text
    assert left_behind(mark) == []


def test_an_interrupted_demo_ends_at_once_and_leaves_no_process_running(tmp_path: Path) -> None:
    mark = os.urandom(4).hex()
    process = subprocess.Popen(  # noqa: S603
        [FAIRLEAD, "demo", "--seconds", "60"],
        cwd=tmp_path,
        env={**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("A server is ready"):
            assert process.poll() is None
        # Two processes run, and the workflows have written to the journal.
        journal = tmp_path / "fairlead-demo" / "journal"
        deadline_s = time.monotonic() + PATIENCE_S
        while len(left_behind(mark)) != 2 or not any(file.stat().st_size for file in journal.rglob("*.open")):
            assert time.monotonic() < deadline_s
            time.sleep(CHECK_S)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=ENDED_S_MAX)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err.strip()) == (130, "")
    assert left_behind(mark) == []
    assert list((tmp_path / "fairlead-demo" / "journal").rglob("*.zst"))
    assert not list((tmp_path / "fairlead-demo" / "journal").rglob("*.open"))


def test_a_demo_without_spark_says_how_to_install_it_and_stays_with_the_console(tmp_path: Path) -> None:
    mark = os.urandom(4).hex()
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", WITHOUT_SPARK, "demo", "--seconds", "2", "--stay"],
        cwd=tmp_path,
        env={**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        out = ""
        while not (line := process.stdout.readline()).startswith("The console: "):
            assert line, process.communicate()
            out += line
        address = line.split()[2]
        assert address.startswith("http://127.0.0.1:")
        # The first orders came before the server was stopped and started again.
        first = urlopen(f"{address}workflow.json?id=order-acme-0", timeout=PATIENCE_S)  # noqa: S310
        assert json.load(first)
        report = json.load(urlopen(f"{address}report.json", timeout=PATIENCE_S))  # noqa: S310
        assert "fairlead-demo/lake yet" in report["sentence"]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=ENDED_S_MAX)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, "")
    assert "pip install 'fairlead[pipeline]'" in out
    assert "fairlead pipeline all --journal fairlead-demo/journal" in out
    assert not (tmp_path / "fairlead-demo" / "lake").exists()
    assert left_behind(mark) == []


async def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = await run("demo", "--folder", str(tmp_path))
    assert done.code == 2
    assert done.line == f"--folder {tmp_path}: the folder has other files: give an empty or a new one"
    assert (tmp_path / "mine").read_text() == "precious"


async def test_an_invalid_duration_is_refused_in_one_line() -> None:
    done = await run("demo", "--seconds", "0")
    assert done.code == 2
    assert "0.0 is not in the range" in done.line
