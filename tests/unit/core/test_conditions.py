"""Conditions: what they come to, and that nothing else can be done with them."""

from __future__ import annotations

from contextlib import suppress
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.core.conditions import MAX_BITS, BadCondition, parse

VALUES: dict[str, Any] = {
    "n": 3,
    "loss": 0.5,
    "name": "night",
    "rows": [{"id": 1, "ok": True}, {"id": 2, "ok": False}],
    "result": {"status": "ok", "deep": {"er": [1, 2, 3]}, "with space": 7},
    "pair": (1, 2),
    "nothing": None,
    "day": date(2026, 1, 2),
    "max_": 1,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n > 2 and loss < 1", True),
        ("n > 2 and not loss < 1 or name == 'day'", False),
        ("1 < n <= 3 < 4", True),
        ("n < 2 < 1 / 0", False),  # as in Python, what follows is not looked at
        ("name in ('night', 'day')", True),
        ("'ig' in name and 'x' not in name", True),
        ("result.status == 'ok'", True),
        ("result.deep.er[-1]", 3),
        ("result['with space'] + n", 10),
        ("rows[1].id", 2),
        ("len(rows[0:1])", 1),
        ("min(1, n) + max(pair) + abs(-2) + sum(pair)", 8),
        ("any([n > 5, n == 3]) and all([n])", True),
        ("nothing is None", True),
        ("n ** 2 - n // 2 * 1 % 5 / 1", 8.0),
        ("-n + +n", 0),
        ("name + '!'", "night!"),
        ("[1] + [n]", [1, 3]),
        ("'big' if n > 2 else 'small'", "big"),
        ("n in {1, 3}", True),
        ("day == day", True),
        ("rows or n", VALUES["rows"]),
        ("nothing and nothing.x", None),
    ],
)
def test_what_an_expression_comes_to(text: str, expected: Any) -> None:
    assert parse(text).evaluate(VALUES) == expected


def test_the_names_that_it_looks_up_are_known() -> None:
    assert parse("len(rows) > n and result.status == 'ok' or max_").names == {"rows", "n", "result", "max_"}


TOO_LARGE = [
    "x" * 2_001,
    "(" * 150 + "n" + ")" * 150 + "+" + "+".join(["n"] * 400),
    "not " * 60 + "n",
    "+".join(["n"] * 600),
    "-" * 1_900 + "1",
    "[" * 190 + "]" * 190,
]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "name.upper()",
        "open('x')",
        "len(rows, key=n)",
        "len.__call__(rows)",
        "(lambda: 1)()",
        "[x for x in rows]",
        "{'a': 1}",
        "f'{n}'",
        "n := 4",
        "...",
        "~n",
        "n @ n",
        "1 << n",
        "await n",
        "*rows",
        "result._private",
        "n; n",
        "import os",
        "",
        "n >",
        "'\0'",
        *TOO_LARGE,
    ],
)
def test_what_is_not_allowed_is_refused_before_anything_is_computed(text: str) -> None:
    with pytest.raises(BadCondition):
        parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9 ** 9 ** 9", "too large a number"),
        ("(2 ** 2000) * (2 ** 2000) * (2 ** 2000)", f"more than {MAX_BITS} bits"),
        ("(-8) ** 0.5", "no real number"),
        ("'x' * 1000000000", r"\* is not possible with a str and a int"),
        ("'%1000000000d' % 1", "% is not possible with a str"),
        ("rows * n", r"\* is not possible with a list"),
        ("1 / 0", "ZeroDivisionError"),
        ("missing > 1", "There is no 'missing' here"),
        ("result.missing", "There is no 'missing' in it"),
        ("name.upper", "A str has no 'upper': only keys of dicts are looked at"),
        ("rows[7]", "IndexError"),
        ("nothing[0]", "A None has no elements"),
        ("name < n", "TypeError"),
        ("n + name", r"\+ is not possible with a int and a str"),
        ("-name", "A str has no sign"),
        ("{rows}", "TypeError"),
    ],
)
def test_what_cannot_be_computed_says_so(text: str, why: str) -> None:
    with pytest.raises(BadCondition, match=why):
        parse(text).evaluate(VALUES)


class Sly:
    """Would do something whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def _act(self, *_: object) -> Any:
        raise AssertionError("code was run")

    __eq__ = __lt__ = __gt__ = __contains__ = __len__ = __bool__ = __getitem__ = _act  # type: ignore[assignment]
    __add__ = __radd__ = __abs__ = __neg__ = __iter__ = _act
    __hash__ = object.__hash__


@pytest.mark.parametrize(
    "text",
    ["x == 1", "1 == x", "1 in x", "not x", "x and 1", "len(x)", "x[0]", "x.y", "x + 1", "1 + x", "-x",
     "abs(x)", "x < 1", "1 if x else 2", "any(x)", "sum(x)", "x is None or x"],
)  # fmt: skip
def test_no_code_of_an_unknown_class_is_run(text: str) -> None:
    with pytest.raises(BadCondition):
        parse(text).evaluate({"x": Sly()})


class Number(int):
    def __add__(self, other: object) -> Any:
        raise AssertionError("code was run")

    __gt__ = __add__


def test_a_subclass_of_a_number_is_no_number() -> None:
    for text in ("x + 1", "x > 1"):
        with pytest.raises(BadCondition):
            parse(text).evaluate({"x": Number(3)})


@given(st.text(alphabet="n1(). []'\"+-*/%<>=!andortilemxsu,:", max_size=60))
def test_any_text_ends_in_a_value_or_in_an_error_by_name(text: str) -> None:
    with suppress(BadCondition):
        parse(text).evaluate({"n": 3, "m": [1, 2], "x": {"n": "t"}})


@pytest.mark.parametrize(
    "text", ["[a] == [1]", "(1, a) == (1, 2)", "{a} == {1}", "a in [a]", "[[a]] == 1", "n in (a,)"]
)
def test_a_list_of_the_text_holds_no_objects_that_would_be_asked(text: str) -> None:
    class Loud:
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            raise AssertionError("it was compared")

    with pytest.raises(BadCondition, match="not possible with a Loud"):
        parse(text).evaluate({"a": Loud(), "n": 1})
