"""Fingerprints: stable where nothing was meant, and every change is either seen or named."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from graflow_ckpt.checkpoint.program.program import (
    Fingerprint,
    compare,
    fingerprint,
    fingerprints,
    outline,
    summary,
)
from graflow_ckpt.checkpoint.program.reader import OWN, QUIET, declaring, origins, task_body
from graflow_ckpt.core.task import Task


def load(source: str, name: str = "shop") -> dict[str, Any]:
    """A user's program, executed as a module of that name."""
    module: dict[str, Any] = {"__name__": name, "__package__": name.rpartition(".")[0]}
    exec(compile(dedent(source), "shop.py", "exec", dont_inherit=True), module)
    return module


def of(source: str, task: str = "run", name: str = "shop") -> Fingerprint:
    return fingerprint(load(source, name)[task])


def changed(before: str, after: str) -> bool:
    """Whether the task `run` of two programs has two fingerprints. Then all other digests differ, too."""
    differ = of(before) != of(after)
    for digest in (summary, outline):
        assert not differ or digest_of(before, digest) != digest_of(after, digest)
    return of(before).digest != of(after).digest


Digest = Callable[[dict[str, Any]], str]


def digest_of(source: str, digest: Digest) -> str:
    return digest({"run": load(source)["run"]})


# --- stable ---------------------------------------------------------------------------------------


PROGRAM = """
    import math
    import re
    from dataclasses import dataclass
    from enum import Enum

    RATE = 0.5
    WORDS = frozenset({"a", "b", "c", 4, None})
    PATTERN = re.compile("x+")
    TABLE = {"a": 1}

    class Mode(Enum):
        FAST = 1
        SLOW = "slow"

    @dataclass
    class Point:
        x: int
        y: int = 3

        def norm(self):
            return math.sqrt(self.x ** 2 + self.y ** 2)

    def even(n): return n == 0 or odd(n - 1)
    def odd(n): return n != 0 and even(n - 1)

    def run(x, mode=Mode.FAST, seen={"b", "a", "c"}, *, k=(1, 2)):
        if x in {"p", "q", "r", 1, 2}:
            return even(x), [RATE * i for i in k], TABLE
        class Inner:
            def go(self): return WORDS, PATTERN.match(x)
        return lambda y: Point(x, y).norm()
"""


def in_a_process(folder: Path, seed: str, command: list[str]) -> Fingerprint:
    folder.joinpath("shop.py").write_text(
        dedent(PROGRAM)
        + dedent("""
            from graflow_ckpt.checkpoint.program.program import fingerprint
            import json
            print(json.dumps(fingerprint(run).to_record()))
        """)
    )
    root = str(Path(__file__).parents[4])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    return Fingerprint.from_record(json.loads(done.stdout))


def test_other_processes_with_other_hash_seeds_agree_also_when_the_module_is_main(tmp_path: Path) -> None:
    prints = {
        in_a_process(tmp_path, "1", ["shop.py"]),
        in_a_process(tmp_path, "2", ["shop.py"]),
        in_a_process(tmp_path, "3", ["-c", "import shop"]),
    }

    assert prints == {of(PROGRAM)}


@pytest.mark.parametrize(
    "after",
    [
        "\n\n\n    X = 1\n    def run(x):\n        y = x\n        return foo(y, None)",
        "def run(x):\n    # why\n    y = x   # why\n    return foo(y, None)",
        "def run(x: 'int') -> str:\n    y: list[int] = x\n    return foo(y, None)",
        "def run(x):\n    z = x\n    return foo(z, None)",
        "def other(): pass\ndef run(x):\n    y = x\n    return foo(y, None)",
    ],
)
def test_lines_comments_annotations_and_names_of_locals_change_nothing(after: str) -> None:
    assert not changed("def run(x):\n    y = x\n    return foo(y, None)", after)


def test_another_docstring_changes_nothing_unless_the_code_uses_it() -> None:
    before = "def run(x):\n  'One.'\n  def inner():\n    'One.'\n    return x, None\n  return inner, None"

    assert not changed(before, before.replace("One", "Two"))
    assert changed("def run():\n  'a'\n  return 'a', None", "def run():\n  'b'\n  return 'b', None")


def test_a_class_inside_a_task_may_move() -> None:
    before = """
        def run():
            class A:
                "one"
                x = 1
            return A
    """
    assert not changed(before, "\n" * 300 + dedent(before))
    assert changed(before, before.replace("x = 1", "x = 2"))


def test_the_name_of_the_module_and_of_the_function_change_nothing() -> None:
    assert of(PROGRAM, name="__main__") == of(PROGRAM, name="shop")
    assert of("def run(x): return x") == of("def ran(x): return x", task="ran")


def test_an_interned_constant_is_the_same_as_one_that_is_not() -> None:
    def make(x: str = "") -> Callable[[], str]:
        return lambda: x

    made = "".join(["ab", "_c"])

    assert fingerprint(make(made)) == fingerprint(make(sys.intern("ab_c")))


def test_helpers_that_call_each_other_in_a_circle_terminate_and_agree() -> None:
    circle = """
        def a(n): return b(n) + c(n)
        def b(n): return c(n) + run(n)
        def c(n): return a(n) + c(n)
        def run(n): return a(n)
    """
    assert not changed(circle, circle)
    assert changed(circle, circle.replace("c(n)\n", "c(n + 1)\n"))


# --- seen -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def run(x): return x + 1", "def run(x): return x + 2"),
        ("def run(x): return x + 1", "def run(x): return x - 1"),
        ("def run(x): return x.a", "def run(x): return x.b"),
        ("def run(x): return x", "def run(y): return y"),
        ("def run(x): return x", "def run(*x): return x"),
        ("def run(x): return x", "async def run(x): return x"),
        ("def run(x): return 1", "def run(x): return True"),
        ("def run(x): return 1", "def run(x): return 1.0"),
        ("def run(x): return 0.0", "def run(x): return -0.0"),
        ("def run():\n  try: len()\n  finally: id()", "def run():\n  len()\n  id()"),
        ("def run(x):\n  def g(): return 1\n  return g", "def run(x):\n  def g(): return 2\n  return g"),
        ("run = lambda x: x", "run = lambda x: -x"),
        ("def run(x=1): return x", "def run(x=2): return x"),
        ("def run(x=[1]): return x", "def run(x=[2]): return x"),
        ("def run(x={'a': [1]}): return x", "def run(x={'a': [2]}): return x"),
        ("def run(x={1}): return x", "def run(x=frozenset({1})): return x"),
        ("def run(*, x=1): return x", "def run(*, x=2): return x"),
        ("def run(*, x=1, y=0): return x", "def run(*, x=0, y=1): return x"),
        ("def h(): return 1\ndef run(x=h): return x", "def h(): return 2\ndef run(x=h): return x"),
        ("K = 1\ndef run(): return K", "K = 2\ndef run(): return K"),
        ("K = (1, 2)\ndef run(): return K", "K = (1, 3)\ndef run(): return K"),
        ("K = 1\ndef run(): return lambda: K", "K = 2\ndef run(): return lambda: K"),
        ("K = 1\ndef run():\n  class A: k = K", "K = 2\ndef run():\n  class A: k = K"),
        ("class A:\n  a = 1\ndef run(): return A", "class A:\n  b = 1\ndef run(): return A"),
        ("import re\nK = re.compile('a')\ndef run(): K()", "import re\nK = re.compile('b')\ndef run(): K()"),
        ("import math\nh = math.sin\ndef run(): h()", "import math\nh = math.cos\ndef run(): h()"),
        ("from math import sqrt as h\ndef run(): h()", "from cmath import sqrt as h\ndef run(): h()"),
        ("h = str.upper\ndef run(): h()", "h = str.lower\ndef run(): h()"),
    ],
)
def test_a_change_of_code_default_or_constant_is_seen(before: str, after: str) -> None:
    assert changed(before, after)
    assert of(before).not_seen == of(after).not_seen == ()


HELPERS = """
    from dataclasses import dataclass
    from enum import Enum
    from functools import lru_cache, partial, wraps

    def logged(f):
        @wraps(f)
        def inner(*a): return f(*a)
        return inner

    def deepest(x): return x + 1
    def deep(x): return deepest(x)
    class Tool:
        factor = 3
        def use(self, x): return deep(x)
        @staticmethod
        def still(x): return x + 10
        @classmethod
        def kind(cls, x): return x + 20
        @property
        def size(self): return 30
    class Meta(type):
        def __len__(cls): return 110
    class Better(Tool, metaclass=Meta): pass
    class Mode(Enum):
        FAST = 40
    @dataclass
    class Point:
        x: int = 50
    @logged
    def wrapped(x): return x + 60
    @lru_cache
    def cached(x): return x + 70
    curried = partial(deep, 80)
    MODE = Mode.FAST
    PLAIN = 90
    async def later(x): return x + 100

    def run(x):
        return Better().use(x), MODE, Point(), wrapped(x), cached(x), curried(), PLAIN, later(x)
"""


@pytest.mark.parametrize(
    "text",
    [
        "x + 1\n",
        "= 3\n",
        "x + 10\n",
        "x + 20",
        "return 30",
        "40",
        "50",
        "x + 60",
        "x + 70",
        "deep, 80",
        "90",
        "+ 100",
        "110",
    ],
)
def test_what_a_helper_does_is_seen_however_deep_it_is(text: str) -> None:
    assert HELPERS.count(text) == 1
    after = HELPERS.replace(text, text.strip() + "1" + "\n" * text.endswith("\n"))

    assert changed(HELPERS, after)
    assert of(HELPERS).not_seen == ()


@pytest.mark.parametrize(
    ("made", "other"),
    [
        ("partial(helper, 1)", "partial(helper, 2)"),
        ("partial(helper, x=1)", "partial(helper, y=1)"),
        ("partial(helper, x=1)", "partial(helper, x=2)"),
        ("Tool().use", "Tool().other"),
        ("lambda mode=Mode.FAST: mode", "lambda mode=Mode.SLOW: mode"),
        ("outer(helper)", "outer(second)"),
        ("Deco(helper)", "Deco(second)"),
    ],
)
def test_a_task_made_of_helpers_sees_them_and_what_is_bound_to_them(made: str, other: str) -> None:
    program = f"""
        from enum import Enum
        from functools import partial, wraps
        K = 1
        class Mode(Enum):
            FAST = 1
            SLOW = 2
        class Tool:
            def use(self): return helper()
            def other(self): return second()
        class Deco:
            def __init__(self, func): self.func = func
            def __call__(self): return self.func()
        def outer(f):
            @wraps(f)
            def run(): return TABLE["f"]()
            return run
        TABLE = {{}}
        def helper(x=0, y=0): return K
        def second(x=0, y=0): return -K
        run = {made}
    """
    assert changed(program, program.replace(made, other))
    if "helper" in made or "Tool" in made:
        assert changed(program, program.replace("return K", "return K + 1"))
        assert changed(program, program.replace("K = 1", "K = 2"))


def test_a_function_with_a_default_or_a_cell_of_its_own_sees_globals_like_any_other() -> None:
    program = """
        K = 1
        CACHE = {}
        def helper(): return 1
        def run(x=0): return K, CACHE, helper()
        def make(n):
            def inner(): return n, K, CACHE, helper()
            return inner
        inner = make(1)
    """
    for task in ("run", "inner"):
        for text in ("K = 1", "return 1"):
            assert of(program, task).digest != of(program.replace(text, text + "1"), task).digest
        assert of(program, task).not_seen == ("CACHE",)


def test_a_constant_in_a_closure_is_seen_and_so_is_a_helper_there() -> None:
    program = """
        def make(n):
            def helper(x): return x + 1
            def run(x): return helper(x) * n
            return run
        run = make(2)
    """
    assert changed(program, program.replace("make(2)", "make(3)"))
    assert changed(program, program.replace("x + 1", "x + 2"))
    assert of(program).not_seen == ()


def test_a_helper_behind_a_decorator_of_an_installed_package_is_seen_and_the_package_named() -> None:
    program = """
        import numpy as np
        @np.errstate(all="raise")
        def helper(x): return x + 1
        def run(x): return helper(x)
    """
    assert changed(program, program.replace("x + 1", "x + 2"))
    assert of(program).not_seen == ("numpy",)


def test_names_and_constants_beyond_the_first_256_are_seen() -> None:
    names = ", ".join(f"N{n}" for n in range(300))
    program = "".join(f"N{n} = {n}\n" for n in range(300)) + f"def run(x): return {names}, [{names}]"
    numbers = f"def run(x): return [{', '.join(f'{n} + x' for n in range(300))}], None"

    assert changed(program, program.replace("N299 = 299", "N299 = 300"))
    assert changed(numbers, numbers.replace("299 + x", "300 + x"))
    documented = numbers.replace("return", "\n  'One.'\n  return")
    assert not changed(documented, documented.replace("One", "Two"))


def test_helpers_in_other_modules_of_the_user_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_features(source: str) -> Fingerprint:
        features = ModuleType("features")
        features.__file__ = "/home/u/features.py"
        exec(source, features.__dict__)
        monkeypatch.setitem(sys.modules, "features", features)
        return of("import features\nfrom features import h\ndef run(x): return features.g(x) + h(x)")

    base = with_features("K = 1\ndef g(x): return x\ndef h(x): return K")

    assert with_features("K = 1\ndef g(x): return -x\ndef h(x): return K").digest != base.digest
    assert with_features("K = 2\ndef g(x): return x\ndef h(x): return K").digest != base.digest
    assert base.not_seen == ()


# --- not seen, and named --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("CACHE = {}\ndef run(): return CACHE", ("CACHE",)),
        ("ITEMS = [1]\ndef h(): return ITEMS\ndef run(): return h()", ("ITEMS",)),
        ("N = 0\ndef run():\n  global N\n  N += 1", ("N",)),
        ("class A: pass\na = A()\ndef run(): return a.b", ("a",)),
        ("class A:\n  def go(self): pass\na = A()\nrun = a.go", ("self",)),
        ("class A:\n  def go(self): pass\ngo = A().go\ndef run(): go()", ("go.self",)),
        ("class A:\n  def __call__(self): pass\nrun = A()", ("self",)),
        ("class A:\n  table = {}\ndef run(): return A()", ("A.table",)),
        ("import numpy as np\ndef run(): return np.zeros(3)", ("numpy",)),
        ("from numpy import zeros\ndef run(): return zeros(3)", ("numpy",)),
        ("def run():\n  import numpy.linalg as la\n  return la", ("numpy",)),
        ("import numpy\nclass A(numpy.ndarray): pass\ndef run(): return A", ("numpy",)),
        ("def run():\n  from .types import x\n  from .. import y", ("..", ".types")),
        ("def run(): return undefined", ("undefined",)),
        ("def run(): return eval('x')", ("eval",)),
        ("class A: pass\ndef run(x=A()): pass", ("x (default)",)),
        ("def run(x=[1, [].append]): pass", ("x (default)",)),
        ("from functools import partial\nrun = partial(print, [print])", ("0 (bound)",)),
        ("def h(): return h.rate\nh.rate = 1\ndef run(): return h()", ("h.rate",)),
        (
            "from functools import singledispatch\n@singledispatch\ndef h(x): pass\ndef run(): h(1)",
            ("h._clear_cache", "h.dispatch", "h.register", "h.registry"),
        ),
        ("def make():\n  log = []\n  return lambda: log\nrun = make()", ("log",)),
        ("def make():\n  def f(): return later\n  return f\n  later = 1\nrun = make()", ("later",)),
    ],
)
def test_what_cannot_be_seen_is_named(program: str, names: tuple[str, ...]) -> None:
    assert of(program).not_seen == names


@pytest.mark.parametrize(
    "program",
    [
        "import json, os.path\ndef run(): return json.dumps(os.path.join('a'))",
        "def run():\n  import json\n  return json.dumps(len([]))",
        "import logging\nlog = logging.getLogger('x')\ndef run(): log.info('x')",
        "Numbers = list[int] | None\nGone = object()\ndef run(): return Numbers, Gone, __name__, __file__",
        "from typing import NamedTuple\nclass P(NamedTuple):\n  x: int = 1\ndef run(): return P()",
        "from abc import ABC\nclass P(ABC):\n  __slots__ = ('x',)\ndef run(): return P()",
        "def run():\n  class A:\n    @property\n    def x(self): pass\n    @x.setter\n    def x(self): pass",
        "from graflow_ckpt.core.task import Options\nO = Options()\ndef run(): return O, Options",
    ],
)
def test_the_library_loggers_and_hints_are_not_listed(program: str) -> None:
    assert of(program).not_seen == ()


def test_what_the_program_rebinds_does_not_change_the_fingerprint() -> None:
    program = "N = 0\ndef run():\n  global N\n  N += 1\n  return N"
    module = load(program)
    before = fingerprint(module["run"])

    module["run"]()

    assert fingerprint(module["run"]) == before


def test_the_class_of_a_global_object_is_followed_though_its_state_is_not_seen() -> None:
    program = (
        "class Model:\n  def predict(self): return 1\nmodel = Model()\ndef run(): return model.predict()"
    )

    assert changed(program, program.replace("return 1", "return 2"))
    assert of(program).not_seen == ("model",)


DECORATED = """
    from functools import update_wrapper
    class Twice:
        def __init__(self, f, rate): update_wrapper(self, f); self.f, self.rate = f, rate
        def __call__(self, x): return self.f(x) * self.rate
    def inner(x): return x + 1
    once = Twice(inner, 2)
    run = Twice(once, 3)
    def named(x): return run(x)
"""


@pytest.mark.parametrize("task", ["run", "named"])
def test_an_object_that_wraps_a_function_is_followed_like_the_function_and_its_state_is_named(
    task: str,
) -> None:
    base = of(DECORATED, task)

    assert base.digest != of(DECORATED.replace("* self.rate", "+ self.rate"), task).digest
    assert base.digest != of(DECORATED.replace("return x + 1", "return x + 2"), task).digest
    assert set(base.not_seen) == {"run" if task == "named" else "self", "self"}


def test_an_object_that_wraps_itself_has_a_fingerprint() -> None:
    program = "class A:\n  def __call__(self): pass\nrun = A()\nrun.__wrapped__ = run\ndef go(): run()"

    assert (of(program).not_seen, of(program, "go").not_seen) == (("self",), ("run", "self"))


# --- tasks of one graph ---------------------------------------------------------------------------


GRAPH = """
    def pay(ctx): ctx.next_task(ship)
    def pack(ctx): return ship(ctx)
    def ship(ctx): return 1
    def make(ship):
        def hands_on(ctx): ctx.next_task(ship)
        def calls(ctx): return ship(ctx)
        return hands_on, calls
    hands_on, calls = make(ship)
"""
NAMES = ("pay", "pack", "ship", "hands_on", "calls")


@pytest.mark.parametrize("decorate", [lambda name, f: f, Task])
def test_a_task_depends_on_the_tasks_that_it_calls_not_on_those_that_it_hands_on(
    decorate: Callable[[str, Any], Any],
) -> None:
    def prints(source: str) -> dict[str, Fingerprint]:
        module = load(source)
        for name in NAMES:
            module[name] = decorate(name, module[name])
        return fingerprints({name: module[name] for name in NAMES})

    before, after = prints(GRAPH), prints(GRAPH.replace("return 1", "return 2"))

    assert {name for name in NAMES if before[name] != after[name]} == {"ship", "pack", "calls"}


INSTALLED = """
from graflow_ckpt import task
from steps.{helper} import {helper}

@task
def run():
    return {helper}({number})
"""


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, factor: int) -> Fingerprint:
    """Of a task in the package `steps`, which was installed into a folder."""
    package = folder / "steps"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "flows.py").write_text(INSTALLED.format(helper="scale", number=number))
    (package / "scale.py").write_text(f"def scale(n): return {factor} * n")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "steps"]:
            patched.delitem(sys.modules, name)
        flows = importlib.import_module("steps.flows")
        found = fingerprints({"run": flows.run.func})["run"]
        for name in [name for name in sys.modules if name.partition(".")[0] == "steps"]:
            del sys.modules[name]
    return found


def test_a_package_that_decorates_tasks_is_followed_also_where_it_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet has checkouts beside installed packages, and two versions installed on two machines."""
    checkout = installed(tmp_path / "src", monkeypatch, 1, 2)

    assert installed(tmp_path / "1/site-packages", monkeypatch, 1, 2) == checkout
    assert installed(tmp_path / "2/site-packages", monkeypatch, 9, 2).digest != checkout.digest
    assert installed(tmp_path / "3/site-packages", monkeypatch, 1, 9).digest != checkout.digest


def test_many_tasks_get_what_each_would_get_alone() -> None:
    module = load(HELPERS)
    tasks = {name: module[name] for name in ("run", "deep", "later", "cached", "curried", "wrapped")}

    assert fingerprints(tasks) == {name: fingerprint(task) for name, task in tasks.items()}


def test_functions_of_one_code_differ_by_their_cells_defaults_and_module() -> None:
    def make(n: Any) -> Callable[[], Any]:
        return lambda: n

    loop = {str(n): (lambda x=n: x) for n in range(3)}

    def keyword(n: int) -> Callable[[], Any]:
        def run(*, x: int = n) -> int:
            return x

        return run

    def wrapper(f: Any) -> Callable[[], Any]:
        def run() -> None: ...

        run.__wrapped__ = f  # type: ignore[attr-defined]
        return run

    code = compile("def run(): return K", "x", "exec")
    modules: list[dict[str, Any]] = [{"K": 1}, {"K": 2}]
    for module in modules:
        exec(code, module)

    found = fingerprints(
        {
            **loop,
            **{f"make{n}": make(n) for n in (1, True, "1")},
            **{f"keyword{n}": keyword(n) for n in (1, 2)},
            **{f"wrapper{n}": wrapper(f) for n, f in enumerate((keyword, make))},
            "m1": modules[0]["run"],
            "m2": modules[1]["run"],
        }
    )

    assert len({each.digest for each in found.values()}) == len(found)


def test_callables_of_every_kind_have_a_fingerprint() -> None:
    def body(x: int = 0) -> int:
        return x

    @wraps(body)
    def outer() -> int:
        return 1

    tasks: list[Callable[..., Any]] = [body, outer, lru_cache(body), partial(body, 1), partial(body, 2)]
    tasks += [len, print, [].append, str.upper, "a".upper, int, dict, np.zeros, np.add, json.dumps, Task]

    digests = [fingerprint(task).digest for task in tasks]

    assert all(len(digest) == 32 for digest in digests)
    assert len(set(digests)) == len(tasks) - 1  # lru_cache(body) is body


# --- compared and kept ----------------------------------------------------------------------------


def test_only_prints_of_one_minor_are_compared() -> None:
    old, new = Fingerprint("3.11", "aa"), Fingerprint("3.11", "bb", ("numpy",))

    assert compare(old, old._replace(not_seen=("x",))) == "same"
    assert compare(old, new) == "changed"
    assert compare(old._replace(python="3.12"), old) == "unknown"
    assert compare(None, old) == compare(old, None) == "unknown"


def test_a_record_survives_json_and_one_of_another_scheme_is_unknown() -> None:
    current = of("import numpy\ndef run(): return numpy, Y")
    record = json.loads(json.dumps(current.to_record()))
    assert current.python == f"{sys.version_info.major}.{sys.version_info.minor}"

    assert Fingerprint.from_record(record) == current
    assert compare(Fingerprint.from_record([current.python + "/0", *record[1:]]), current) == "unknown"


# --- fast -----------------------------------------------------------------------------------------


def test_ten_thousand_tasks_take_a_fraction_of_a_second() -> None:
    module = load(
        "\n".join(f"def t{n}(x): return helper(x, {n})" for n in range(5000)) + "\ndef helper(x, n): pass"
    )
    tasks: dict[str, Any] = {name: value for name, value in module.items() if name[0] == "t"}
    for n in range(5000):
        tasks[f"u{n}"] = lambda x, n=n: x + n

    started = time.process_time()
    found = fingerprints(tasks)
    spent = time.process_time() - started

    assert len({each.digest for each in found.values()}) == 10_000
    assert spent < 1.0  # about 0.05; a walk by `dis`, or per task into the helper, takes seconds


# --- summaries ------------------------------------------------------------------------------------

GENERATED = """
    def helper(n):
        return n + RATE

    RATE = 2

    def a():
        return helper(1)

    def b(n):
        return helper(2) if n in {"p", "q", "r"} else n

    def c(x=3):
        return [n for n in range(x)]
"""


def generated(digest: Digest, source: str = GENERATED, names: str = "abc") -> str:
    module = load(source)
    return digest({name: module[name] for name in names})


each = pytest.mark.parametrize("digest", [summary, outline])


@each
def test_a_summary_does_not_depend_on_lines_comments_or_the_process(digest: Digest) -> None:
    moved = "\n\n    # a comment" + GENERATED
    program = f"{Path(__file__).read_text()}\nprint(generated({digest.__name__}, {moved!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == generated(digest) == generated(digest, moved)


@each
def test_a_summary_tells_which_task_has_which_code(digest: Digest) -> None:
    module = load(GENERATED)

    assert digest({"a": module["a"], "b": module["b"]}) != digest({"a": module["b"], "b": module["a"]})
    assert generated(digest, names="ab") != generated(digest, names="a")


@each
def test_a_summary_tells_modules_with_the_same_names_apart(digest: Digest) -> None:
    first, second = load(GENERATED), load(GENERATED.replace("RATE = 2", "RATE = 3"))

    assert digest({"a": first["a"], "b": second["b"]}) != digest({"a": second["a"], "b": first["b"]})


# --- nothing of the user's runs -----------------------------------------------------------------

TOUCHY = """
    touched = []

    class Meta(type):
        def __getattr__(cls, name): touched.append(name); raise RuntimeError(name)

    class Touchy(metaclass=Meta):
        def __getattr__(self, name): touched.append(name); raise RuntimeError(name)
        def __eq__(self, other): raise RuntimeError("eq")
        def __hash__(self): raise RuntimeError("hash")
        def __bool__(self): raise RuntimeError("bool")

    class Proxy:
        __slots__ = ()
        @property
        def __class__(self): touched.append("class"); raise RuntimeError("unbound")
        @property
        def __dict__(self): touched.append("dict"); raise RuntimeError("unbound")
        def __getattribute__(self, name): touched.append(name); raise RuntimeError(name)

    class Holder:
        member = Touchy()
        other = Proxy()

    touchy, proxy = Touchy(), Proxy()

    def run(x=touchy, *, y=proxy): return touchy, proxy, Holder, Touchy, Proxy
"""


def test_objects_whose_attribute_access_runs_code_are_not_asked_for_anything() -> None:
    module = load(TOUCHY)
    module["bound"] = Task("run", module["run"], arguments={"x": module["proxy"], "y": module["touchy"]})
    closure = load("def make(a, b):\n  def run(): return a, b\n  return run")["make"]
    tasks = {
        "run": module["run"], "bound": module["bound"], "object": module["touchy"],
        "partial": partial(module["run"], module["proxy"]),
        "closure": closure(module["touchy"], module["proxy"]),
    }  # fmt: skip

    found = fingerprints(tasks)

    assert module["touched"] == []
    assert {"touchy", "proxy", "Holder.member", "Holder.other"} <= set(found["run"].not_seen)
    assert {"x (bound)", "y (bound)"} <= set(found["bound"].not_seen)


def test_models_of_pydantic_have_a_fingerprint() -> None:
    program = """
        from pydantic import BaseModel
        class Block(BaseModel):
            name: str = "a"
            def shout(self): return self.name.upper()
        LIMIT = 3
        block = Block()
        def run(): return Block().shout(), LIMIT, BaseModel, block
    """

    assert changed(program, program.replace("LIMIT = 3", "LIMIT = 4"))
    assert changed(program, program.replace("upper", "lower"))
    assert {"block", "pydantic"} <= set(of(program).not_seen)


def test_a_decorated_task_has_the_fingerprint_of_its_function_and_bound_arguments_are_compared() -> None:
    def run(**arguments: Any) -> Any: ...

    def print_of(**arguments: Any) -> Fingerprint:
        return fingerprints({"run": Task("run", run, arguments=arguments)})["run"]

    assert print_of() == fingerprint(Task("run", run)) == fingerprint(run)  # type: ignore[arg-type]
    assert print_of(n=1, m=[1, {"a": (2,)}]) == print_of(m=[1, {"a": (2,)}], n=1)
    assert print_of(n=1) != print_of(n=2)
    assert print_of(n=[1]) != print_of(n=[2])
    assert print_of(n=1) != print_of(m=1)
    assert print_of(n=1) != print_of()
    assert print_of(n=print_of, m=[changed].append).not_seen == ("m (bound).self",)


# --- whose code a module is -------------------------------------------------------------


def plain() -> None: ...


def inside() -> Task:
    def nested() -> None: ...

    return Task("nested", nested)


def test_the_standard_library_is_quiet_and_an_installed_package_has_its_name() -> None:
    of = origins(())

    assert [of("json.decoder"), of("graflow_ckpt.core"), of("numpy.linalg")] == [QUIET, QUIET, "numpy"]
    assert [of(__name__), of("__main__"), of("made_by_exec")] == [OWN, OWN, OWN]


def test_a_package_of_the_tasks_is_the_users_own_but_the_library_never_is() -> None:
    of = origins(["numpy", "json"])

    assert [of("numpy.linalg"), of("json.decoder")] == [OWN, QUIET]


def test_a_package_has_tasks_if_a_name_in_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pack.steps")
    monkeypatch.setitem(sys.modules, "pack.steps", module)
    exec("def run(): ...\ndef helper(): ...", vars(module))
    run, helper = module.run, module.helper
    module.run = Task("run", run)  # type: ignore[attr-defined]

    assert list(declaring([helper, run, run], task_body)) == ["pack"]
    assert list(declaring([helper], task_body)) == []  # made a task of elsewhere
    assert list(declaring([inside().func, np.linalg.norm, print], task_body)) == []
