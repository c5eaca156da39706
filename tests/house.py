"""Measures the house: `make house` prints each rule of the package's shape, what breaks it, and its bar.

    make house                      how often each rule is broken, and how often it may be
    make house ARGS="slivers runs"  where these rules are broken, one a line

A rule is a function from the house to the places that break it, so that a test can assert that there are
none; the first line of its docstring is its row. Files are read with ast and tokenize, and nothing of the
package is imported, but for `touched`, which runs one task. Not here: who may import whom (import-linter).
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NAME = "graflow_ckpt"
ENGINES = (("engine",), ("fleet",))
FACADES: dict[str, str] = {
    "CheckpointMetadata": "a frozen value: the fields of a meta as docs/checkpoint-format.md lists them",
    "Cut": "a frozen value: all that a user's own retention may ask of a checkpoint",
    "DriverContract": "public tests: a method for each promise of a driver",
    "ExecutionContext": "public: the one object that a program holds of its session",
    "Fallback": "a store, with the calls of each protocol that a store may have",
    "Handle": "public: the one object that a program holds of a session of a fleet",
    "KeyedStore": "public: a store, with the calls of each protocol that a store may have",
    "LocalStore": "public: a store, with the calls of each protocol that a store may have",
    "MemorySession": "a session, with the calls of its protocol",
    "RedisSession": "a session, with the calls of its protocol",
    "SessionState": "a record: the tables of a session, as core/apply.py changes them",
    "Settings": "a frozen value: the arguments of workflow()",
    "Status": "a frozen value: the columns of `status --json`",
    "TaskGraph": "public: the one object that a program builds its tasks with",
    "Wrapper": "a store, with the calls of each protocol that a store may have",
}
"""Classes that may be large, and why: a user holds one object, or reads one value."""

SLIVER, FOLDER, FILE, FUNCTION, ATTRIBUTES, METHODS = 120, 20, 600, 50, 15, 20
SIBLINGS, RUN, LITERAL = 3, 8, 60
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One of ours. `where`: module, function, or typing for what only a type checker imports."""

    target: str
    line: int
    where: str


class Module:
    """A file of the package; its name is dotted, below the package."""

    def __init__(self, path: Path, package: Path) -> None:
        parts = path.relative_to(package).with_suffix("").parts
        self.stem, self.folder = path.stem, parts[:-1]
        self.name = ".".join(self.folder if self.stem == "__init__" else parts)
        self.place = f"{'/'.join(parts)}.py"
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.nodes = list(ast.walk(ast.parse(self.text)))
        self.functions = [node for node in self.nodes if isinstance(node, Function)]
        self.classes = [node for node in self.nodes if isinstance(node, ast.ClassDef)]


class House:
    """The package and what stands around it, read once."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        package = root / NAME
        self.modules = [Module(path, package) for path in sorted(package.rglob("*.py"))]
        self.by_name = {module.name: module for module in self.modules}
        self.imports = {m.name: list(self._imports(m.nodes[0], "module")) for m in self.modules}

    def _imports(self, node: ast.AST, where: str) -> Iterator[Import]:
        if isinstance(node, Function | ast.Lambda):
            where = "function"
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            where = "typing"
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                found = [f"{child.module}.{alias.name}" for alias in child.names]
            else:
                yield from self._imports(child, where)
                continue
            ours = dict.fromkeys(self._ours(name) for name in found if f"{name}.".startswith(f"{NAME}."))
            yield from (Import(name, child.lineno, where) for name in ours)

    def _ours(self, name: str) -> str:
        """The module that has this name: itself, or the one that it stands in."""
        name = name.removeprefix(NAME).removeprefix(".")
        while name and name not in self.by_name:
            name = name.rpartition(".")[0]
        return name

    def importers(self, name: str) -> set[str]:
        return {by for by, found in self.imports.items() if by != name and name in (i.target for i in found)}


def slivers(house: House) -> list[str]:
    """Slivers: modules up to 120 lines with one importer

    Which is in the same folder, and is not its pair: `x.py` and `_x.py`. Imports for typing count.
    """
    found = []
    for module in (m for m in house.modules if m.stem != "__init__" and len(m.lines) <= SLIVER):
        others = [house.by_name[name] for name in house.importers(module.name)]
        beside = [other for other in others if other.folder == module.folder]
        if len(others) == len(beside) == 1 and module.stem.lstrip("_") != others[0].stem.lstrip("_"):
            found.append(f"{module.place} is for {others[0].place}: {len(module.lines)} lines")
    return found


def folders(house: House) -> list[str]:
    """Folders above 20 modules

    Without its `__init__`.
    """
    sizes = Counter(m.folder for m in house.modules if m.stem != "__init__")
    return [f"{'/'.join(folder)} has {size}" for folder, size in sorted(sizes.items()) if size > FOLDER]


def prefixes(house: House) -> list[str]:
    """Three siblings that share a prefix_"""
    siblings: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for module in house.modules:
        word, underscore, _ = module.stem.lstrip("_").partition("_")
        if underscore and not module.stem.startswith("__"):
            siblings[*module.folder, f"{word}_"].append(module.stem)
    return [f"{'/'.join(at)}: {', '.join(names)}" for at, names in siblings.items() if len(names) >= SIBLINGS]


def classes_twice(house: House) -> list[str]:
    """Public class names that stand twice

    In front ends they may.
    """
    modules = [module for module in house.modules if module.folder[:1] != ("frontends",)]
    named = ((node.name, f"{m.place}:{node.lineno}") for m in modules for node in m.classes)
    return _twice((name, place) for name, place in named if not name.startswith("_"))


def _twice(found: Iterable[tuple[str, str]]) -> list[str]:
    """What has more than one place."""
    places: dict[str, list[str]] = defaultdict(list)
    for what, place in found:
        places[what].append(place)
    return [f"{what[:40]!r}: {', '.join(at)}" for what, at in sorted(places.items()) if len(at) > 1]


def cycles(house: House) -> list[str]:
    """Import cycles, at module level"""
    return _cycles(house, {"module"})


def cycles_later(house: House) -> list[str]:
    """Import cycles, with imports in functions

    Without those for typing.
    """
    return _cycles(house, {"module", "function"})


def _cycles(house: House, where: set[str]) -> list[str]:
    after = {name: {i.target for i in found if i.where in where} for name, found in house.imports.items()}
    reached = {name: _reached(name, after) for name in after}
    knots = {frozenset({name, *(o for o in reached[name] if name in reached[o])}) for name in after}
    return sorted(", ".join(sorted(knot)) for knot in knots if len(knot) > 1)


def _reached(name: str, after: dict[str, set[str]]) -> set[str]:
    found, waiting = set[str](), [name]
    while waiting:
        new = after[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def imports_in_functions(house: House) -> list[str]:
    """Imports of our own in functions

    One for each module that a statement names; `import_module` is not seen.
    """
    each = ((m, one) for m in house.modules for one in house.imports[m.name] if one.where == "function")
    return [f"{module.place}:{one.line} {one.target}" for module, one in each]


def assignments(house: House) -> list[str]:
    """Assignments onto other objects in engine, fleet

    `x.y = …`, where x is neither self nor made in the same function: assigned from a call of a class, of a
    method of a class, of `replace` or `copy`. In `self.x.y = …` it is `self.x` that is changed: that counts.
    """
    found = []
    for module in (m for m in house.modules if m.folder[:1] in ENGINES):
        for nodes in (list(_own(function)) for function in module.functions):
            made = {"self", "cls"} | {name for node in nodes for name in _made(node)}
            for target in (target for node in nodes for target in _targets(node)):
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) not in made:
                    found.append(f"{module.place}:{target.lineno} {ast.unparse(target)}")
    return found


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, Function | ast.ClassDef):
            yield child
            yield from _own(child)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        given = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        given = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        given = [node.optional_vars]
    else:
        return
    for target in given:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else (target,)


def _made(node: ast.AST) -> Iterator[str]:
    """The names to which an assignment gives a new object."""
    value = node.context_expr if isinstance(node, ast.withitem) else getattr(node, "value", None)
    if isinstance(value, ast.Call):
        words = [word.lstrip("_") for word in ast.unparse(value.func).split(".")]
        if any(word[:1].isupper() for word in words) or words[-1] in ("cls", "replace", "copy", "deepcopy"):
            yield from (target.id for target in _targets(node) if isinstance(target, ast.Name))


def long_files(house: House) -> list[str]:
    """Files above 600 lines"""
    return [f"{m.place} has {len(m.lines)}" for m in house.modules if len(m.lines) > FILE]


def long_functions(house: House) -> list[str]:
    """Functions above 50 lines

    From `def` to the last one.
    """
    each = ((m, f, (f.end_lineno or 0) - f.lineno + 1) for m in house.modules for f in m.functions)
    return [f"{m.place}:{f.lineno} {f.name} has {length}" for m, f, length in each if length > FUNCTION]


def large_classes(house: House) -> list[str]:
    """Classes above 15 attributes or 20 methods

    Attributes are those of `self`, and names that the class gives a value or a type. Facades may be larger.
    """
    found = []
    for module in house.modules:
        for node in (node for node in module.classes if node.name not in FACADES):
            methods = {part.name for part in node.body if isinstance(part, Function)}
            targets = [t for part in ast.walk(node) for t in _targets(part)]
            own = {t.attr for t in targets if isinstance(t, ast.Attribute) and ast.unparse(t.value) == "self"}
            own |= {t.id for part in node.body for t in _targets(part) if isinstance(t, ast.Name)}
            if len(own) > ATTRIBUTES or len(methods) > METHODS:
                had = f"{len(own)} attributes, {len(methods)} methods"
                found.append(f"{module.place}:{node.lineno} {node.name}: {had}")
    return found


def runs(house: House) -> list[str]:
    """Equal runs of 8 lines

    Blank lines, comments, imports and signatures are left out. A run is as long as it is equal; one that
    stands three times counts twice, each time beside the first.
    """
    lines = [(module, n, text) for module in house.modules for n, text in _code(module)]
    ends = [here[0] is not there[0] for here, there in pairwise(lines)]
    first: dict[tuple[str, ...], int] = {}
    found: list[tuple[int, int, int]] = []
    for at in range(len(lines) - RUN + 1):
        if any(ends[at : at + RUN - 1]):
            continue
        before = first.setdefault(tuple(text for _, _, text in lines[at : at + RUN]), at)
        if before == at or at - before < RUN:
            continue
        if found and (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]) == (before, at):
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((before, at, 1))
    places = [f"{module.place}:{number}" for module, number, _ in lines]
    return [f"{places[at]} as {places[before]}: {RUN - 1 + more} lines" for before, at, more in found]


def _code(module: Module) -> Iterator[tuple[int, str]]:
    """The lines that may stand once only, with their numbers."""
    apart = set[int]()
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            apart |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, Function):
            apart |= set(range(node.lineno, max(node.body[0].lineno, node.lineno + 1)))
    for number, line in enumerate(module.lines, start=1):
        if number not in apart and (text := line.strip()) and not text.startswith("#"):
            yield number, text


def literals(house: House) -> list[str]:
    """Literals of 60 characters that stand twice

    Without docstrings.
    """
    found: list[tuple[str, str]] = []
    for module in house.modules:
        prose = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
        texts = [node for node in module.nodes if isinstance(node, ast.Constant) and id(node) not in prose]
        longer = [node for node in texts if isinstance(node.value, str) and len(node.value) >= LITERAL]
        found += [(str(node.value), f"{module.place}:{node.lineno}") for node in longer]
    return _twice(found)


# --- prose ---------------------------------------------------------------------------------

_FILE_NAME = re.compile(r"(?<![\w.*/-])[\w./-]*\w\.py\b(?![\w(])")
_OF_USERS = re.compile(r"<!-- docs: file (\S+) -->")
_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1", re.MULTILINE | re.DOTALL)


def names_in_prose(house: House) -> list[str]:
    """Names of files in prose that do not exist

    `x.py` in docs, docstrings and comments, wherever in the tree it is. Apart: the changelog, code on pages,
    and users' programs, which are those that a page makes.
    """
    pages = [house.root / "README.md", *sorted((house.root / "docs").rglob("*.md"))]
    texts = {str(page.relative_to(house.root)): page.read_text("utf-8") for page in pages if page.exists()}
    users = {"FILE.py", *(name for text in texts.values() for name in _OF_USERS.findall(text))}
    own = [path.relative_to(house.root) for path in house.root.glob("*/**/*.py")]
    there = [f"/{path.as_posix()}" for path in own if not path.parts[0].startswith(".")]
    prose = [(place, _FENCE.sub("", text)) for place, text in texts.items()]
    prose += [(f"{m.place}:{line}", text) for m in house.modules for line, text in _prose(m)]
    return [
        f"{place} names {name}"
        for place, text in prose
        for name in dict.fromkeys(_FILE_NAME.findall(text))
        if name not in users and not any(path.endswith(f"/{name.lstrip('./')}") for path in there)
    ]


def _prose(module: Module) -> Iterator[tuple[int, str]]:
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


# --- tests ---------------------------------------------------------------------------------

ELSEWHERE = {
    "__main__.py": "tests/acceptance: it is started",
    "_restore.py": "tests/golden: it is what a pickle names",
    "checkpoint/values/kinds.py": "tests/unit/checkpoint/values/test_codec.py: a kind is a row of its tables",
    "cli/": "tests/acceptance: a command is tested as it is typed",
    "core/protocols.py": "tests/typing: it has types alone",
    "engine/reaping.py": "tests/unit/fleet: what it releases, a dead worker held",
    "frontends/door.py": "tests/unit/test_public_names.py: a fleet's packages may be missing",
    "links/environment.py": "tests/unit/config: it is read through the settings",
    "sessions/protocol.py": "tests/typing: it has types alone",
    "sessions/redis/facts.py": "tests/unit/engine: it is what a home in Redis asks",
    "sessions/redis/names.py": "tests/unit/sessions: it is reached by each session in Redis",
    "stores/drivers/postgres/driver.py": "tests/conformance: it is under the contract of stores",
    "stores/drivers/sqlite/driver.py": "tests/conformance: it is under the contract of stores",
    "stores/files/leftovers.py": "tests/unit/stores/files: it is reached by a store that sweeps",
    "stores/streams.py": "tests/conformance: it is under the contract of parts",
    "testing/": "tests/unit/stores/test_drivers.py: it convicts broken drivers",
}
"""Modules that no test of their folder imports: which tests are there for them, and why these."""


def untested(house: House) -> list[str]:
    """Modules that no test of their folder imports

    Which is in `tests/unit`, in the folder of that name, and may be called like the module instead. Others
    are listed, with the tests that are there for them.
    """
    tests = house.root / "tests/unit"
    known: dict[str, set[str]] = defaultdict(set)
    for path in sorted(tests.rglob("test_*.py")):
        own = known[path.relative_to(tests).parts[0]]
        own.add(path.stem)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                own |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    found = list[str]()
    for module in (m for m in house.modules if m.stem != "__init__"):
        listed = [entry for entry in ELSEWHERE if module.place.startswith(entry)]
        names = {f"{NAME}.{module.name}", f"test_{module.stem}"}
        if not listed and known[module.folder[0] if module.folder else ""].isdisjoint(names):
            found.append(module.place)
    return found


def listed_in_vain(house: House) -> list[str]:
    """Entries of ELSEWHERE whose module or whose tests are gone"""
    places = [module.place for module in house.modules]
    return [
        f"{entry}: {said}"
        for entry, said in ELSEWHERE.items()
        if not any(place.startswith(entry) for place in places)
        or not (house.root / said.partition(":")[0]).exists()
    ]


# --- what one task touches ---------------------------------------------------------------------


def touched(house: House) -> list[str]:
    """Modules that a local task touches

    Those of which a function runs from `execute()` of one task to the rename of its checkpoint: one_task.py.
    """
    program = str(Path(__file__).with_name("one_task.py"))
    with tempfile.TemporaryDirectory() as folder:
        given = {"PYTHONPATH": str(house.root), "HOME": folder}
        done = subprocess.check_output([sys.executable, program], cwd=folder, env=given, text=True)
    package = f"{house.root / NAME}/"
    return [name.removeprefix(package) for name in done.splitlines() if name.startswith(package)]


# --- the table -----------------------------------------------------------------------------


RULES: dict[Callable[[House], list[str]], int] = {
    folders: 0, slivers: 0, prefixes: 0, classes_twice: 0, cycles: 0, cycles_later: 0,
    imports_in_functions: 40, assignments: 0, long_files: 0, long_functions: 0, large_classes: 0, runs: 0,
    literals: 0, names_in_prose: 0, untested: 0, listed_in_vain: 0, touched: 28,
}  # fmt: skip
"""Each rule, and how often it may be broken in the end."""


def lines_below(folder: Path, *endings: str) -> int:
    files = [path for path in folder.rglob("*") if path.suffix in endings]
    return sum(path.read_bytes().count(b"\n") for path in files)


def rows(house: House) -> Iterator[tuple[str, int, int]]:
    """What is counted, how much there is, and how much there may be."""
    package = house.root / NAME
    stores = sum(lines_below(package / name, ".py", ".lua", ".sql") for name in ("stores", "testing"))
    yield "Modules of the package", len(house.modules), 230
    yield "Lines of the package", lines_below(package, ".py"), 41_000
    yield "Lines of stores, wrappers, contracts; with Lua, SQL", stores, 10_500
    yield "Lines of tests", lines_below(house.root / "tests", ".py"), 67_000
    for rule, bar in RULES.items():
        yield (rule.__doc__ or "").partition("\n")[0], len(rule(house)), bar


def table(house: House) -> Iterator[str]:
    yield f"{'':52}{'now':>8}{'bar':>8}"
    for what, now, bar in rows(house):
        yield f"{what:52}{now:8,}{bar:8,}{'  above' if now > bar else ''}"
    yield f"\n{'Folder':52}{'modules':>8}{'lines':>8}"
    for folder in sorted({module.folder for module in house.modules}):
        found = [module for module in house.modules if module.folder == folder]
        yield f"{'/'.join((NAME, *folder)):52}{len(found):8}{sum(len(m.lines) for m in found):8,}"


def main(names: Iterable[str]) -> None:
    house, known = House(), {rule.__name__: rule for rule in RULES}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"There is no rule {unknown[0]}. Name one of {', '.join(known)}.")
    found = (line for name in names for line in known[name](house))
    print("\n".join(found if names else table(house)))


if __name__ == "__main__":
    main(sys.argv[1:])
