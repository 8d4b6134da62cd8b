"""The shape of the project: rooms import earlier rooms only, without cycles; what is pure stays
pure; every module states what it is and what is public."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path("lmerge_service")
MODULES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}

ORDER = (
    *("model", "core", "queries", "workloads", "formats", "config", "kafka", "merge", "reader"),
    *("http", "service", "local", "offline", "replicas", "spark", "demo", "drills"),
    *("dashboard", "cli"),
)
"""Each room may import those before it, and itself."""
MODEL = {"elements", "tdb", "errors", "signals", "page", "text"}
"""Modules beside the rooms: the streams, and what knows nothing of them."""
NEVER = {
    *(("spark", "service"), ("offline", "service")),
    *(("replicas", "service"), ("replicas", "local"), ("replicas", "offline")),
}
ONLY_IN = {
    "aiokafka": {"kafka", "local", "drills"},
    "pyspark": {"spark"},
    "pyarrow": {"spark"},
    "numpy": {"spark"},
    "pandas": {"spark"},
    "psutil": {"local", "drills"},
    "deltalake": {"spark"},
    "sqlglot": {"queries"},
    "typer": {"cli", "drills"},
    "nicegui": {"dashboard"},
}
PURE = {"core", "model", "queries", "workloads"}
IMPURE = {"asyncio", "logging", "time", "structlog"}
NOT_PURE = {"signals"}
# The judge of a drill must not share the mistakes of what it judges.
JUDGE = {
    *("__main__", "control_log_check", "dump", "history", "observability_checks", "records"),
    *("streams", "verdicts"),
}
JUDGE_MAY_USE = {"model", "formats"}


def name_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    parts = module.split(".")
    if parts[0] != PACKAGE.name or len(parts) == 1:
        return ""
    return "model" if parts[1] in MODEL else parts[1]


def imports_of(tree: ast.Module) -> set[str]:
    """Modules, those of the standard library and of others among them."""
    names, found = {name_of(path) for path in MODULES}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import of {node.module}"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= full & names or {node.module or ""}
    return found


def test_every_room_has_its_place() -> None:
    assert {room_of(name_of(path)) for path in MODULES} - {""} == set(ORDER)


def test_rooms_import_earlier_rooms_only() -> None:
    for path, tree in MODULES.items():
        if not (room := room_of(name_of(path))):
            continue  # the package's front door
        for imported in imports_of(tree):
            other, head = room_of(imported), imported.partition(".")[0]
            if other:
                assert ORDER.index(other) <= ORDER.index(room), f"{path} imports {imported}"
                assert (room, other) not in NEVER, f"{path} imports {imported}"
            assert room in ONLY_IN.get(head, {room}), f"{path} imports {imported}"
            pure = room in PURE and path.stem not in NOT_PURE
            assert not (pure and head in IMPURE), f"{path} imports {imported}"


def test_no_import_cycle() -> None:
    graph = {name_of(path): imports_of(tree) - {name_of(path)} for path, tree in MODULES.items()}
    TopologicalSorter(graph).prepare()


def test_the_judge_knows_nothing_of_what_it_judges() -> None:
    for name in JUDGE:
        path = PACKAGE / "drills" / f"{name}.py"
        for imported in imports_of(MODULES[path]):
            if room_of(imported) == "drills":
                assert imported.rpartition(".")[2] in JUDGE, f"{path} imports {imported}"
            elif room_of(imported):
                assert room_of(imported) in JUDGE_MAY_USE, f"{path} imports {imported}"
            assert imported not in {"aiokafka", "asyncio"} or name in {"dump", "__main__"}


def test_whoever_reads_a_status_loads_no_worker() -> None:
    """As drills, the demo and benchmarks do."""
    loaded = loaded_by("lmerge_service.service.status.document")
    assert not loaded & {
        "aiokafka",
        "lmerge_service.service.task",
        "lmerge_service.config.topology",
    }


def test_a_query_starts_without_what_only_merges_need() -> None:
    loaded = loaded_by("lmerge_service.replicas.serving")
    assert not loaded & {"fastapi", "lmerge_service.config.topology"}


def loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_module_states_what_it_is_and_what_is_public() -> None:
    for path, tree in MODULES.items():
        assert ast.get_docstring(tree), f"{path} has no docstring"
        public = {node.name for node in tree.body if _is_public(node)}  # type: ignore[attr-defined]
        exports = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        ]
        names = ast.literal_eval(exports[0]) if exports else None
        assert names is None or isinstance(names, tuple)
        missing = public - set(names or ())
        assert not missing, f"{path} leaves {missing} out of __all__"


def _is_public(node: ast.stmt) -> bool:
    """A definition without an underscore; a command is found by its app."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    decorators = {ast.unparse(each).partition(".")[0] for each in node.decorator_list}
    return not node.name.startswith("_") and "app" not in decorators
