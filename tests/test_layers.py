"""The shape of the project: imports point inward, without cycles; public modules say what is
public; every module opens with what it is."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path("lmerge_service")
MODULES = sorted(PACKAGE.rglob("*.py"))

# Each room may import the rooms it names, and itself. The model is elements, tdb and errors.
ROOMS: dict[str, set[str]] = {
    "model": set(),
    "core": {"model"},
    "present": {"model"},
    "formats": {"model", "core"},
    "page": {"model"},  # of HTML
    "credentials": set(),  # files, variables and certificates: nothing of streams
    "signals": set(),  # of the operating system
    "startup": set(),  # what `lmerge up` starts, as the topology says it
    # the options of a dialect stand beside it
    "topology": {"model", "core", "formats", "credentials", "startup"},
    "kafka": {"model", "core", "formats"},
    # what a replica imports; the service answers in the same words
    "feedback": {"model", "formats", "kafka"},
    "service": {
        *("model", "core", "credentials", "feedback", "formats", "kafka", "signals", "topology"),
    },
    "offline": {"model", "core", "formats", "kafka"},
    "spark": {
        *("model", "core", "credentials", "feedback", "formats", "kafka", "offline", "present"),
        *("page", "service", "topology"),
    },
    "up": {"model", "kafka", "service", "startup", "topology"},
    "demo": {
        *("model", "feedback", "formats", "kafka", "offline", "present", "service", "topology"),
        "up",
    },
}
ROOMS["cli"] = set(ROOMS)
ONLY_IN: dict[str, set[str]] = {
    "aiokafka": {"kafka"},
    "pyspark": {"spark"},
    "pyarrow": {"spark"},
    "typer": {"cli"},
}
# The judge of a run must not share the mistakes of what it judges: of the package it may use the
# model and the decoding of records, and nothing of chaos/ that is not part of it.
JUDGE = ("__main__", "decided", "dump", "history", "records", "seen", "streams", "verdicts")
JUDGE_MAY_USE = {"model", "formats"}
PURE = {"core", "model", "present"}
IMPURE_MODULES = {"asyncio", "logging", "time", "structlog"}


def room_of(module: str) -> str:
    parts = module.split(".")
    if len(parts) == 1:
        return "top"
    return "model" if parts[1] in {"elements", "tdb", "errors"} else parts[1]


def name_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if not all(is_module(node.module, alias.name) for alias in node.names):
                found.add(node.module or "")
            found |= {
                f"{node.module}.{a.name}" for a in node.names if is_module(node.module, a.name)
            }
    return found


def is_module(package: str | None, name: str) -> bool:
    place = Path(*(package or "").split("."), name)
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_inward(path: Path) -> None:
    room = room_of(name_of(path))
    if room == "top":
        return  # the package's front door re-exports core and model
    for imported in imports_of(path):
        head = imported.split(".")[0]
        if head == "lmerge_service":
            other = room_of(imported)
            allowed = ROOMS[room] | {room}
            # `from lmerge_service import topology` names the package and then the module
            assert other in allowed or imported == "lmerge_service", f"{path} imports {imported}"
        assert room in ONLY_IN.get(head, {room}), f"{path} imports {imported}"
        assert not (room in PURE and head in IMPURE_MODULES), f"{path} imports {imported}"


def test_no_import_cycle() -> None:
    graph = {
        name_of(path): {m for m in imports_of(path) if m.startswith("lmerge_service.")}
        for path in MODULES
    }
    names = set(graph)
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"cycle: {' -> '.join([*trail, module])}"
        if module not in done:
            for other in graph[module] & names:
                visit(other, (*trail, module))
            done.add(module)

    for module in names:
        visit(module, ())


def _decorating(node: ast.AST) -> list[ast.expr]:
    """The objects whose attributes decorate a definition: `app` for @app.command()."""
    found = []
    for decorator in getattr(node, "decorator_list", []):
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        found += [target.value] if isinstance(target, ast.Attribute) else []
    return found


@pytest.mark.parametrize("name", JUDGE)
def test_the_judge_knows_nothing_of_what_it_judges(name: str) -> None:
    path = Path("chaos", f"{name}.py")
    for imported in imports_of(path):
        head, _, rest = imported.partition(".")
        if head == "lmerge_service":
            assert room_of(imported) in JUDGE_MAY_USE, f"{path} imports {imported}"
        assert head != "chaos" or rest in JUDGE, f"{path} imports {imported}"
        assert head not in {"aiokafka", "asyncio"} or name in {"dump", "__main__"}, f"{path}"


@pytest.mark.parametrize("path", [*MODULES, *sorted(Path("chaos").rglob("*.py"))], ids=str)
def test_a_module_says_what_it_is_and_what_is_public(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path} does not say what it is"
    public = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and "app" not in map(ast.unparse, _decorating(node))  # a command, found by its app
    ]
    exports = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    if public or exports:
        assert exports, f"{path} has no __all__"
        names = ast.literal_eval(exports[0])
        assert isinstance(names, tuple)
        missing = set(public) - set(names)
        assert not missing, f"{path} leaves {missing} out of __all__"
