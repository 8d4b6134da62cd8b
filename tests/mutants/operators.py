"""The mutation operators: every mutant of a module, by function and operator, never by text.

>>> [each.id for each in mutants_of(ast.parse("def f(a): return a < 1 and g(a)"), "m")]
['m:f/drop/1', 'm:f/operand/1', 'm:f/operand/2', 'm:f/boundary/1', 'm:f/number/1']
"""

import ast
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmerge_service

__all__ = ("Mutant", "ids_of", "mutants_of")

_ROOT = Path(lmerge_service.__file__).parent

_BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_NEGATIONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "ceil": "int",
    "sorted": "list",
    "bisect_left": "bisect_right",
    "bisect_right": "bisect_left",
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS_LEFT_ALONE = ("__repr__", "check")
"""`check` asserts invariants: there is nothing to see of it while they hold."""
_LEFT_ALONE = (ast.Assert, ast.JoinedStr, ast.arguments)
"""Assertions state what holds anyway, formatted strings are for people, and defaults are evaluated
when a function is defined, outside of it."""
_CONDITIONS = ("test", "ifs", "guard")
_FIELDS_LEFT_ALONE = ("annotation", "returns", "decorator_list")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node is in its tree."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None

    def put(self, replacement: ast.AST) -> None:
        ast.copy_location(replacement, self.node)
        if self.index is None:
            setattr(self.parent, self.field, replacement)
        else:
            getattr(self.parent, self.field)[self.index] = replacement


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change to one function; `apply` makes it in the tree that it was found in."""

    id: str
    """module:function/operator/number, the number among the function's mutants by that operator"""
    function: ast.FunctionDef | ast.AsyncFunctionDef
    _place: _Place
    _replacement: ast.AST

    def apply(self) -> None:
        self._place.put(self._replacement)
        ast.fix_missing_locations(self.function)


def ids_of(package: str) -> Iterator[str]:
    """The ids of all mutants of a package of lmerge_service."""
    for path in sorted((_ROOT / package).rglob("*.py")):
        module = ".".join(path.relative_to(_ROOT.parent).with_suffix("").parts)
        for mutant in mutants_of(ast.parse(path.read_text()), module.removesuffix(".__init__")):
            yield mutant.id


def mutants_of(tree: ast.Module, module: str) -> Iterator[Mutant]:
    """All mutants of a module's functions and methods, in the order of the source; each belongs to
    the tree of this call, so that one may be applied per call."""
    numbers: Counter[str] = Counter()
    for name, function in _functions(tree, f"{module}:"):
        for place in _places(function):
            for operator, replacement in _replacements(place):
                stem = f"{name}/{operator}"
                numbers[stem] += 1
                yield Mutant(f"{stem}/{numbers[stem]}", function, place, replacement)


def _functions(
    scope: ast.Module | ast.ClassDef, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of modules and classes; a nested function is part of its outermost."""
    for node in scope.body:
        if isinstance(node, _FUNCTIONS):
            if node.name not in _FUNCTIONS_LEFT_ALONE:
                yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


def _places(parent: ast.AST) -> Iterator[_Place]:
    for field, value in ast.iter_fields(parent):
        if field in _FIELDS_LEFT_ALONE or (isinstance(parent, ast.Raise) and field == "exc"):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not isinstance(node, _LEFT_ALONE):
                yield _Place(node, parent, field, index)
                yield from _places(node)


def _replacements(place: _Place) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in a place instead, each with its operator."""
    node = place.node
    yield from _of_conditions(place)
    if _droppable(node) and not _ends_anyway(place):
        yield "drop", ast.Pass()
    elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
        yield "once", _copy(node, body=[*node.body, ast.Break()])
    elif isinstance(node, ast.BoolOp):
        yield from (("operand", other) for other in _without_an_operand(node))
    elif isinstance(node, ast.Compare):
        yield from _of_a_comparison(place)
    elif isinstance(node, ast.Call):
        yield from _of_a_call(node)
    elif isinstance(node, ast.Slice):
        yield "slice", ast.Slice()
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "boolean", ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield "number", ast.Constant(node.value + 1)
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        yield "arithmetic", _copy(node, op=_ARITHMETIC[type(node.op)]())
    if isinstance(node, ast.BinOp) and not isinstance(place.parent, ast.BinOp):
        yield from (("operand", other) for other in (node.left, node.right))
    if isinstance(node, ast.Tuple) and isinstance(place.parent, ast.Lambda):
        yield from (("operand", _copy(node, elts=[each])) for each in node.elts)


def _of_conditions(place: _Place) -> Iterator[tuple[str, ast.AST]]:
    """A branch that is always taken, or never; a loop whose condition always holds hangs."""
    if place.field in _CONDITIONS:
        if not isinstance(place.parent, ast.While):
            yield "always", ast.Constant(True)
        yield "never", ast.Constant(False)


def _droppable(node: ast.AST) -> bool:
    """A statement that does something by itself; without an assignment to a local name, what
    follows mostly fails anyway."""
    if isinstance(node, ast.Assign):
        return not all(isinstance(target, ast.Name) for target in node.targets)
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    return isinstance(
        node,
        ast.AugAssign | ast.Delete | ast.Return | ast.Raise | ast.Continue | ast.Break,
    )


def _ends_anyway(place: _Place) -> bool:
    """A return of None at the end of a function."""
    node, parent = place.node, place.parent
    return (
        isinstance(node, ast.Return)
        and (node.value is None or ast.unparse(node.value) == "None")
        and isinstance(parent, _FUNCTIONS)
        and node is parent.body[-1]
    )


def _without_an_operand(node: ast.BoolOp) -> Iterator[ast.AST]:
    for index in range(len(node.values)):
        kept = node.values[:index] + node.values[index + 1 :]
        yield kept[0] if len(kept) == 1 else _copy(node, values=kept)


def _of_a_comparison(place: _Place) -> Iterator[tuple[str, ast.AST]]:
    node = place.node
    assert isinstance(node, ast.Compare)
    decides = place.field in _CONDITIONS or isinstance(place.parent, ast.BoolOp)
    for index, op in enumerate(node.ops):
        for operator, others in (("boundary", _BOUNDARIES), ("negate", _NEGATIONS)):
            # a whole condition or operand that is negated dies with those above
            if type(op) in others and not (operator == "negate" and decides):
                ops = [*node.ops[:index], others[type(op)](), *node.ops[index + 1 :]]
                yield operator, _copy(node, ops=ops)


def _of_a_call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    for index in range(len(node.keywords)):
        kept = node.keywords[:index] + node.keywords[index + 1 :]
        yield "keyword", _copy(node, keywords=kept)
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _CALLS:
        keywords = [] if name == "sorted" else node.keywords
        yield "call", _copy(node, func=ast.Name(_CALLS[name], ast.Load()), keywords=keywords)
    if name in ("min", "max") and len(node.args) > 1:
        yield from (("operand", argument) for argument in node.args)


def _copy(node: ast.AST, **changed: Any) -> Any:
    """A copy of a node with other fields."""
    copy = deepcopy(node)
    for field, value in changed.items():
        setattr(copy, field, value)
    return copy
