"""Shapes: what code loads, rebinds, calls and imports; and nothing of where it stands."""

from __future__ import annotations

from textwrap import dedent
from types import CodeType
from typing import Any

import pytest

from graflow_ckpt.checkpoint.bytecode import Shape, Shapes, Use, pack


def shape(source: str, *path: str) -> Shape:
    """The shape of a function of a program, named by the functions that it stands in."""
    code = compile(dedent(source), "shop.py", "exec", dont_inherit=True)
    for name in path or ("run",):
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return Shapes().of(code)


def test_uses_say_whether_a_global_is_called_handed_on_or_looked_into() -> None:
    found = shape("""
        import np
        def run(x):
            a(x, b)
            b.c(d.e)
            return np.f(x), [g for g in h], lambda: i(j)
    """)

    assert set(found.uses) == {
        Use("a", True, ()),
        Use("b", False, ("", "c")),
        Use("d", False, ("e",)),
        Use("np", False, ("f",)),
        Use("h", False, ("",)),
        Use("i", True, ()),
        Use("j", False, ("",)),
    }


def test_a_global_may_be_called_in_one_place_and_handed_on_in_another() -> None:
    [use] = shape("def run(): return a(a) and (lambda: a.b)").uses

    assert use.called
    assert set(use.attributes) == {"", "b"}


def test_what_nested_code_rebinds_is_rebound_by_the_task_too() -> None:
    found = shape(
        """
        def make():
            n = m = 0
            def run():
                k = 0
                def inner():
                    global X
                    nonlocal n, k
                    X = n = k = m
                class A:
                    global Y
                    del Y
                return inner
            return run
    """,
        "make",
        "run",
    )

    assert found.rebinds == {"X", "Y"}
    assert found.rebinds_free == {"n"}


def test_a_free_variable_that_is_called_is_told_from_one_that_is_handed_on() -> None:
    found = shape(
        """
        def make(f, g, h, k):
            def run(x):
                h(f, g(1))
                return lambda: k(g, h)
            return run
    """,
        "make",
        "run",
    )

    assert found.calls_free == {"g", "h", "k"}


@pytest.mark.parametrize(
    ("statement", "imports"),
    [
        ("import a.b", ("a.b",)),
        ("import a as b, c", ("a", "c")),
        ("from a import b, c", ("a",)),
        ("from . import a", (".",)),
        ("from ..a.b import c", ("..a.b",)),
    ],
)
def test_modules_that_the_code_imports_are_named_with_their_dots(
    statement: str, imports: tuple[str, ...]
) -> None:
    assert shape(f"def run():\n  {statement}").imports == imports
    assert shape(f"def run():\n  def inner():\n    {statement}\n  return inner").imports == imports


def test_locals_of_a_class_body_are_no_globals() -> None:
    found = shape("""
        def run():
            class A:
                x = 1
                y = x + z
    """)

    assert [use.name for use in found.uses] == ["__name__", "z"]


def test_code_that_stands_inside_is_looked_at_once_and_belongs_to_the_digest() -> None:
    before, after = (
        shape(f"def run():\n  def inner():\n    return lambda: {n}\n  return inner") for n in (1, 2)
    )

    assert before.digest != after.digest
    assert before.digest == shape("def run():\n  def other():\n    return lambda: 1\n  return other").digest


def test_shapes_remember_code_by_what_it_is_not_by_where_it_was() -> None:
    shapes = Shapes()

    def made(n: int) -> CodeType:
        module: dict[str, Any] = {}
        exec(f"def run(x): return x + {n}", module)
        code = module["run"].__code__
        assert isinstance(code, CodeType)
        return code

    digests = [shapes.of(made(n)).digest for n in range(100)]  # none is kept by anybody else

    assert len(set(digests)) == 100


def test_constants_pack_by_type_and_content() -> None:
    values = [1, 1.0, True, "1", b"1", None, (1,), frozenset({1}), 1j, ..., 0.0, -0.0, slice(1), slice(2)]

    assert len({pack((value,)) for value in values}) == len(values)
    assert pack((frozenset("abc"), (slice(1, (2,)), [3]))) == pack((frozenset("cba"), (slice(1, (2,)), [3])))
