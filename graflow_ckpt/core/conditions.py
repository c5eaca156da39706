"""Conditions: expressions over values, safe to take from a file or a command line.

    loss > 2 or n == 0        result.status in ("failed", "lost")        len(rows) >= 3 and max(rows) < limit

Names; keys of dicts, as `a.b` or `a["b"]`; elements and slices of lists, tuples and texts; comparisons, also
chained; `and or not in is`, `a if b else c`; `+ - * / // % **` on numbers, `+` on texts and lists; and calls
of len, min, max, abs, sum, any and all. Nothing else: no attribute of any object is looked at, no method
called. An object of a class that is no plain value cannot be compared, nor can its truth be asked; what is in
a list or dict is not looked through for that, so give it plain values if their classes are not trusted.

Promise: whatever text a user gives, `parse` ends soon, and so does `evaluate`: a text is short and shallow,
integers and what is put together do not grow beyond their bounds. What is not allowed is `BadCondition`, and
so is what cannot be computed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from graflow_ckpt.core.errors import GraflowError

MAX_TEXT: Final = 2_000
MAX_NODES: Final = 500
MAX_DEPTH: Final = 40
MAX_BITS: Final = 4_096
MAX_LENGTH: Final = 10_000_000

_NUMBERS: Final = (bool, int, float)
_PLAIN: Final = (*_NUMBERS, complex, str, bytes, type(None), list, tuple, dict, set, frozenset)


class BadCondition(GraflowError, ValueError):
    """An expression that is not allowed, or that cannot be computed with these values."""


# Any, here and below: values are whatever a session holds.
@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed expression."""

    text: str
    _root: ast.expr

    @property
    def names(self) -> frozenset[str]:
        """The names that it looks up."""
        called = {id(node.func) for node in ast.walk(self._root) if isinstance(node, ast.Call)}
        return frozenset(
            node.id for node in ast.walk(self._root) if isinstance(node, ast.Name) and id(node) not in called
        )

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the condition."""
        try:
            return _Evaluation(values).of(self._root)
        except BadCondition as error:
            error.ids["text"] = self.text
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise BadCondition(
                f"{self.text!r} cannot be computed here: {type(error).__name__}: {error}.", text=self.text
            ) from error


def parse(text: str) -> Condition:
    """Parse the condition of a text."""
    if len(text) > MAX_TEXT:
        raise BadCondition(f"An expression of {len(text)} characters; {MAX_TEXT} are allowed.")
    try:
        root = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deep"
        raise BadCondition(
            f"{text!r} is no expression: {reason}.", hint="Write it like: loss > 2."
        ) from error
    _check(text, root)
    return Condition(text, root)


# --- what is allowed -----------------------------------------------------------------------


def _check(text: str, root: ast.expr) -> None:
    count = 0
    level: list[ast.AST] = [root]
    for depth in range(MAX_DEPTH + 1):
        if not level:
            return
        if depth == MAX_DEPTH:
            break
        count += len(level)
        if count > MAX_NODES:
            break
        for node in level:
            _check_node(text, node)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    raise BadCondition(
        f"The expression {text[:60]!r}… is too large.", hint=f"{MAX_NODES} parts, {MAX_DEPTH} levels."
    )


def _check_node(text: str, node: ast.AST) -> None:
    if not isinstance(node, _ALLOWED):
        raise _refused(text, type(node).__name__.lower())
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        if not known or node.keywords:
            raise _refused(text, "a call of anything but " + ", ".join(_FUNCTIONS))
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        raise _refused(text, f"the name {node.attr}")
    if isinstance(node, ast.Constant) and type(node.value) not in _PLAIN:
        raise _refused(text, repr(node.value))


def _refused(text: str, what: str) -> BadCondition:
    return BadCondition(
        f"{text!r}: {what} is not allowed in an expression.",
        hint="Names, keys, comparisons, and/or/not, in, arithmetic, " + ", ".join(_FUNCTIONS) + ".",
        text=text,
    )


_ALLOWED: Final = (
    ast.Name, ast.Load, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Call, ast.Compare,
    ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.IfExp, ast.List, ast.Tuple, ast.Set, ast.boolop, ast.cmpop,
    ast.Not, ast.USub, ast.UAdd, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow,
)  # fmt: skip


# --- evaluation ------------------------------------------------------------------------------


def _add(left: Any, right: Any) -> Any:
    if type(left) in _NUMBERS and type(right) in _NUMBERS:
        return _bounded(left + right)
    if type(left) is type(right) and type(left) in (str, bytes, list, tuple):
        if len(left) + len(right) > MAX_LENGTH:
            raise BadCondition("What is put together would be too long.")
        return left + right
    raise _not_numbers("+", left, right)


def _power(left: Any, right: Any) -> Any:
    if type(left) is int and type(right) is int and left.bit_length() * max(right, 1) > MAX_BITS:
        raise BadCondition(f"{left} ** {right} is too large a number.")
    found = left**right
    if isinstance(found, complex):
        raise BadCondition(f"{left} ** {right} is no real number.")
    return found


def _arithmetic(symbol: str, operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(left: Any, right: Any) -> Any:
        if type(left) not in _NUMBERS or type(right) not in _NUMBERS:
            raise _not_numbers(symbol, left, right)  # `*` and `%` of texts can make very long ones
        return _bounded(operate(left, right))

    return checked


def _bounded(number: Any) -> Any:
    if type(number) is int and number.bit_length() > MAX_BITS:
        raise BadCondition(f"A number of more than {MAX_BITS} bits.")
    return number


def _not_numbers(symbol: str, left: Any, right: Any) -> BadCondition:
    return BadCondition(f"{symbol} is not possible with a {_kind(left)} and a {_kind(right)}.")


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


_OPERATIONS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: _add,
    ast.Sub: _arithmetic("-", operator.sub),
    ast.Mult: _arithmetic("*", operator.mul),
    ast.Div: _arithmetic("/", operator.truediv),
    ast.FloorDiv: _arithmetic("//", operator.floordiv),
    ast.Mod: _arithmetic("%", operator.mod),
    ast.Pow: _arithmetic("**", _power),
}
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "len": len, "min": min, "max": max, "abs": abs, "sum": lambda items: sum(items), "any": any, "all": all,
}  # fmt: skip


class _Evaluation:
    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def of(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._value(name)
            case ast.Attribute(value=inner, attr=name):
                return self._key(self.of(inner), name)
            case ast.Subscript(value=inner, slice=index):
                return self._element(self.of(inner), index)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return _FUNCTIONS[name](*[_plain(self.of(argument), name) for argument in arguments])
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp(op=op, values=parts):
                return self._either(isinstance(op, ast.Or), parts)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return not _plain(self.of(inner), "not")
            case ast.UnaryOp(op=op, operand=inner):
                return self._sign(op, self.of(inner))
            case ast.BinOp(op=op, left=left, right=right):
                return _OPERATIONS[type(op)](self.of(left), self.of(right))
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.of(body) if _plain(self.of(test), "if") else self.of(other)
            case ast.List(elts=items):
                return self._items(items)
            case ast.Tuple(elts=items):
                return tuple(self._items(items))
            case ast.Set(elts=items):
                return set(self._items(items))
        raise BadCondition(f"{type(node).__name__} is not allowed in an expression.")

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
        """Return the items of a list that the text itself makes, to be compared as a whole."""
        return [_plain(self.of(node), "a list") for node in nodes]

    def _value(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        known = ", ".join(sorted(self._values)[:12])
        raise BadCondition(
            f"There is no {name!r} here.", hint=f"There is: {known}." if known else "", name=name
        )

    def _key(self, value: Any, name: Any) -> Any:
        if type(value) is not dict:
            raise BadCondition(f"A {_kind(value)} has no {name!r}: only keys of dicts are looked at.")
        if name not in value:
            raise BadCondition(
                f"There is no {name!r} in it.", hint=f"It has: {', '.join(map(str, value))[:200]}."
            )
        return value[name]

    def _element(self, value: Any, index: ast.expr) -> Any:
        if isinstance(index, ast.Slice):
            ends = [None if end is None else self.of(end) for end in (index.lower, index.upper, index.step)]
            key: Any = slice(*ends)
        else:
            key = self.of(index)
        if type(value) is dict:
            return self._key(value, key)
        if type(value) not in (list, tuple, str, bytes):
            raise BadCondition(f"A {_kind(value)} has no elements that can be looked at.")
        return value[key]

    def _compare(self, node: ast.Compare) -> bool:
        left = _plain(self.of(node.left), "comparing")
        for op, other in zip(node.ops, node.comparators, strict=True):
            right = _plain(self.of(other), "comparing")
            if not _COMPARISONS[type(op)](left, right):
                return False
            left = right
        return True

    def _either(self, wanted: bool, parts: list[ast.expr]) -> Any:
        found: Any = not wanted
        for part in parts:
            found = _plain(self.of(part), "and/or")
            if bool(found) is wanted:
                return found
        return found

    def _sign(self, op: ast.unaryop, value: Any) -> Any:
        if type(value) not in _NUMBERS:
            raise BadCondition(f"A {_kind(value)} has no sign.")
        return -value if isinstance(op, ast.USub) else +value


def _plain(value: Any, doing: str) -> Any:
    """Return the value, if its class is a builtin one: others have code of their own for this."""
    if type(value) not in _PLAIN and type(value).__module__ not in _HARMLESS:
        raise BadCondition(f"{doing} is not possible with a {_kind(value)}.")
    return value


_HARMLESS: Final = frozenset({"datetime", "decimal", "uuid", "pathlib", "pathlib._local"})
"""Plain values of a session that are no builtins: they compare among each other."""
