"""A term as a text that reads back equal.

A text is one Python expression of constructors, and before it a definition for each buffer and each
barrier.  It is read by ``ast``, never executed: a name is a class of ``CLASSES``, a definition or
``inf``; an argument is a number, a string, a tuple or another part.  Arguments have the names of
the class's fields, in their order; fields at their default are left out.  An instruction is written
by its name; one that is not the package's by its name and ``own=True``, and ``parse`` is given it.

>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.term.operation import matmul
>>> term = Simt().program(matmul(), Chosen(LADDER["naive"]))
>>> text = text_of(term)
>>> print(text.splitlines()[1])
buffer_a = Buffer(name='a', level='gmem', dtype='f32', shape=('m', 'k'), stride=('ld_a', 1))
>>> parse(text) == term
True

``key_of`` is the text's SHA-256: what is said of a term elsewhere is bound to it by that.

Source: ``docs/model.md``, section "Terms"; Python's ``ast`` for the grammar.
"""

from __future__ import annotations

import ast
import hashlib
import math
import types
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from tinygpu.errors import ProgramError, TinyGpuError, nearest
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term import expression, operation, program, statement
from tinygpu.term.access_map import Access, Affine, Buffer, Immediate, Predicate, Scalar
from tinygpu.term.pages import Lengths, Pages

__all__ = ["CLASSES", "VERSION", "key_of", "parse", "text_of"]

VERSION = 1
_HEAD = f"# tinygpu term {VERSION}"
_DEEPEST = 60
"""Levels of a term: constructors and tuples within one another."""

CLASSES: Mapping[str, type] = {
    one.__name__: one
    for one in (
        program.Program, program.Role, program.Axis, Buffer, Access, Affine, Immediate, Scalar,
        Predicate, statement.Barrier, statement.Do, statement.For, statement.ForTile,
        statement.When, statement.Elect, statement.Exit, statement.Sync, statement.Commit,
        statement.WaitGroup, statement.Wait, statement.Arrive, statement.Fence,
        operation.Operation, operation.Operand, operation.Groups, operation.Reduction, Pages,
        Lengths,
        expression.Constant, expression.Value, expression.Index, expression.Apply,
    )
}  # fmt: skip
"""What a text can make, beside instructions."""
_LINES = ("body", "roles", "buffers", "barriers")
"""Fields of which each part stands on a line of its own."""


def text_of(term: program.Program) -> str:
    """Return a term's text.  Raises ProgramError for one over a space, whose numbers are open."""
    defined: list[Buffer | statement.Barrier] = [*term.buffers, *term.barriers]
    lines = [f"{_name(one)} = {_call(one, 0)}" for one in defined]
    return "\n".join([_HEAD, *lines, _call(term, 0), ""])


def key_of(text: str) -> str:
    """Return the SHA-256 of a term's text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _name(part: Buffer | statement.Barrier) -> str:
    return f"{'buffer' if isinstance(part, Buffer) else 'barrier'}_{part.name}"


def _part(part: object, depth: int) -> str:
    """Return the text of any part; what is defined is written by its name."""
    if type(part) in (int, str):  # most parts are
        return repr(part)
    match part:
        case Buffer() | statement.Barrier():
            return _name(part)
        case Instruction():
            own = "" if INSTRUCTIONS.get(part.name) == part else ", own=True"
            return f"Instruction({part.name!r}{own})"
        case tuple():
            inside = ", ".join(_part(one, depth) for one in part)
            return f"({inside}{',' * (len(part) == 1)})"
        case bool() | np.bool_():
            return repr(bool(part))
        case int() | np.integer():
            return repr(int(part))
        case float() | np.floating() if not math.isnan(part):
            return repr(float(part))
        case str() | None:
            return repr(part)
        case _ if type(part) in CLASSES.values():
            return _call(part, depth)
    raise ProgramError(f"a term's text has no {type(part).__name__}: {str(part)[:60]}")


def _call(part: Any, depth: int) -> str:
    """Return the text of a constructor."""
    found, hints = [], _hints(CLASSES[type(part).__name__])
    for f in fields(part):
        given = getattr(part, f.name)
        if hints[f.name] in (bool, int) and isinstance(given, int | np.integer | np.bool_):
            given = hints[f.name](given)  # one for the other, as 1 for True
        if f.default is not MISSING and _same(given, f.default):
            continue
        if f.name in _LINES and given:
            start = "\n" + "  " * (depth + 1)
            inside = "".join(f"{start}{_part(one, depth + 1)}," for one in given)
            found.append(f"{f.name}=({inside})")
        else:
            found.append(f"{f.name}={_part(given, depth)}")
    return f"{type(part).__name__}({', '.join(found)})"


def _same(given: object, default: object) -> bool:
    """Say whether a field has its default, in type as well."""
    if type(given) is not type(default):
        return False
    same = given == default
    return same if isinstance(same, bool) else bool(np.all(same))


def parse(
    text: str, instructions: Mapping[str, Instruction] = types.MappingProxyType({})
) -> program.Program:
    """Return the term of a text; ``instructions``, by name, are those that it calls own.

    Raises ProgramError, with the line, for a text of another version or form, for parts that are
    unknown or of another kind than a field takes, and for what makes no term.
    """
    if text.split("\n", 1)[0] != _HEAD:
        raise ProgramError(f"a term's text begins with {_HEAD!r}; this one is of another kind")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)  # as 1in, which is read as 1 in
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProgramError(f"a term's text: {getattr(error, 'msg', error)}") from None
    reader = _TermReader(instructions)
    for node in body[:-1]:
        match node:
            case ast.Assign([ast.Name(name)], ast.Call() as call) if name not in reader.known:
                made = reader.part(call, 0)
                if not isinstance(made, Buffer | statement.Barrier) or name != _name(made):
                    raise _fault(node, f"{name} is no buffer or barrier of this name")
                reader.known[name] = made
            case _:
                raise _fault(node, "is no definition of a buffer or a barrier")
    match body[-1:]:
        case [ast.Expr(last)]:
            found = reader.part(last, 0)
            if isinstance(found, program.Program):
                reader.require_all(found)
                return found
    raise ProgramError("a term's text ends in Program(..)")


class _TermReader:
    """Parts of texts, by definitions that are known and the user's own instructions."""

    def __init__(self, own: Mapping[str, Instruction]) -> None:
        self.own = own
        self.known: dict[str, Buffer | statement.Barrier] = {}

    def part(self, node: ast.expr, depth: int) -> Any:
        """Return the part of a node."""
        if depth > _DEEPEST:
            raise _fault(node, f"is nested more than {_DEEPEST} levels deep")
        match node:
            case ast.Constant(bool() | int() | float() | str() | None as found):
                return found
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)) if not isinstance(
                number, bool
            ):
                return -number
            case ast.UnaryOp(ast.USub(), ast.Name("inf")):
                return -math.inf
            case ast.Name("inf"):
                return math.inf
            case ast.Name(name) if name in self.known:
                return self.known[name]
            case ast.Tuple(parts):
                return tuple([self.part(one, depth + 1) for one in parts])
            case ast.Call(ast.Name("Instruction"), [ast.Constant(str(name))], []):
                if name not in INSTRUCTIONS:
                    raise _fault(node, f"instruction {name}: {nearest(name, INSTRUCTIONS)}")
                return INSTRUCTIONS[name]
            case ast.Call(
                ast.Name("Instruction"),
                [ast.Constant(str(name))],
                [ast.keyword("own", ast.Constant(value=True))],
            ):
                if name not in self.own:
                    raise _fault(node, f"instruction {name} is the user's own; give it to parse")
                return self.own[name]
            case ast.Call(ast.Name(name), [], keywords) if name in CLASSES:
                return self._made(node, CLASSES[name], keywords, depth)
        raise _fault(node, f"{ast.unparse(node)[:60]} is no part of a term")

    def _made(self, node: ast.Call, kind: type, keywords: list[ast.keyword], depth: int) -> Any:
        given = {k.arg: self.part(k.value, depth + 1) for k in keywords if k.arg}
        hints = _hints(kind)
        order = [name for name in hints if name in given]
        if [k.arg for k in keywords] != order:
            raise _fault(node, f"{kind.__name__} takes {', '.join(hints)}, in this order")
        for name, value in given.items():
            if not _fits(value, hints[name]):
                raise _fault(node, f"{kind.__name__}: {name} is {str(value)[:60]}")
        try:
            return kind(**given)
        except TypeError as error:
            raise _fault(node, str(error).removeprefix(f"{kind.__name__}.")) from None
        except TinyGpuError as error:
            raise ProgramError(f"line {node.lineno} of a term's text: {error}") from None

    def require_all(self, term: program.Program) -> None:
        """Raise ProgramError unless the definitions are the term's buffers and barriers."""
        own = [*map(_name, term.buffers), *map(_name, term.barriers)]
        if own != list(self.known):
            raise ProgramError("a term's text defines other buffers or barriers than its term has")


def _fault(node: ast.AST, text: str) -> ProgramError:
    return ProgramError(f"line {getattr(node, 'lineno', 0)} of a term's text: {text}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the types of a class's fields, in their order."""
    hints = get_type_hints(kind)
    assert is_dataclass(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _fits(value: object, hint: Any) -> bool:
    """Say whether a value is of a field's type; an int is a float, a bool is no int."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        each = _repeated(inner, len(value))
        return len(each) == len(value) and all(map(_fits, value, each))
    if hint is float:
        return type(value) in (int, float)
    if hint in (int, bool, str):
        return type(value) is hint
    return isinstance(value, type(None) if hint is None else hint)


def _repeated(inner: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    return inner[:1] * count if inner[1:] == (Ellipsis,) else inner
