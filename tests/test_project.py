"""The set-up around the code: locks, containers, commands that the README names."""

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]


def locked(name: str) -> dict[str, str]:
    """package → version, of a requirement file in which everything has a hash."""
    text = Path(f"requirements/{name}.txt").read_text()
    pins = re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    entries = re.split(r"^(?=[a-z0-9._-]+==)", text, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries), f"{name}: a pin without hash"
    return dict(pins)


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!;\[ ]", each)[0].replace(".", "-").lower() for each in requirements}


@pytest.mark.parametrize(
    ("file", "extras"),
    [
        ("base", []),
        ("demo", ["demo"]),
        ("spark", ["spark"]),
        ("comparison", ["comparison"]),
        ("dev", ["demo", "dev", "spark"]),
    ],
)
def test_every_dependency_is_locked_with_its_hash(file: str, extras: list[str]) -> None:
    wanted = names(PROJECT["dependencies"])
    for extra in extras:
        wanted |= names(PROJECT["optional-dependencies"][extra])
    assert wanted <= set(locked(file))


def test_all_locks_are_cut_from_one_resolution() -> None:
    everything = locked("all")
    for file in ("base", "comparison", "demo", "dev", "spark"):
        pins = locked(file)
        assert pins.items() <= everything.items(), file
    assert "pyspark" not in locked("base")
    assert everything["pyspark"] == "4.2.0"


def test_the_image_copies_what_is_there() -> None:
    for line in Path("Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            assert all(Path(source).exists() for source in sources), line


def test_ci_runs_the_tests_and_the_readme_names_the_commands() -> None:
    makefile = Path("Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert {"demo", "test", "test-deep", "lint", "bench"} <= targets
    assert "make test" in Path(".ci/run").read_text()
    named = set(re.findall(r"make ([a-z-]+)", Path("README.md").read_text()))
    assert named <= targets
    assert {"demo", "test"} <= named


def test_nothing_tracked_names_a_machine_or_a_registry() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], capture_output=True, text=True, check=False
    ).stdout.split("\0")
    if tracked == [""]:
        pytest.skip("not a git checkout")
    hosts = "|".join(("pypi" + r"\.org", "repo1?" + r"\.maven", "files" + r"\.pythonhosted"))
    foreign = re.compile(rf"{hosts}|(?<![\w}}/.])/({'root'}|{'home'}/[a-z]+|{'work'})/")
    for name in filter(None, tracked):
        path = Path(name)
        if path.suffix in {".json", ".lock"} or not path.is_file():
            continue
        found = foreign.search(path.read_text(errors="replace"))
        assert found is None, f"{name}: {found}"


@pytest.mark.parametrize("page", [Path("README.md"), *sorted(Path("docs").rglob("*.md"))], ids=str)
def test_what_a_page_imports_is_there(page: Path) -> None:
    imports = re.findall(
        r"^from (lmerge_service[\w.]*) import (\([^)]*\)|[^\n#]+)", page.read_text(), re.MULTILINE
    )
    for module, names in imports:
        for name in re.findall(r"\w+", names.partition(" as ")[0]):
            found = hasattr(importlib.import_module(module), name)
            assert found or importlib.util.find_spec(f"{module}.{name}"), f"{module}: {name}"
