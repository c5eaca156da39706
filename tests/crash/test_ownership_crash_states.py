"""After a power cut at any call of a claim, the epoch is one that was never given out before.

The lock file is rewritten in place, in two slots; what a torn write leaves of it is laid out state by
state, and the real store then acquires the session.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest

from graflow_ckpt.core.protocols import Line
from graflow_ckpt.stores import ledger, local, ownership
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.ownership import LocalLease
from tests.crash.crash_states import MODELS, Model, Note, RecordingDisk, Tree, Write, crash_states
from tests.crash.trio_scenarios import MEMORY, count

pytestmark = pytest.mark.crash


class Life:
    """What happens to one session; each promise is (the last epoch given out, the lines recorded)."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.disk = RecordingDisk(root)
        self.store = LocalStore(f"{root}/c", disk=self.disk)
        self.lines: tuple[Line, ...] = ()

    def claim(self) -> LocalLease:
        lease = self.store.acquire("s", take_over=True)
        self.disk.promise((lease.epoch, self.lines))
        return lease

    def claim_unsynced(self) -> None:
        """Killed after the new slot was written and before it was synced."""
        with self.disk.dying(lambda _, before: count(Write, before) == 1):
            self.claim()

    def rewind(self, lease: LocalLease, sequence: int) -> None:
        self.store.rewound(lease, sequence)
        self.lines = (*self.lines, Line(lease.epoch, sequence))
        self.disk.promise((lease.epoch, self.lines))


def first(life: Life) -> None:
    life.claim()


def again_and_again(life: Life) -> None:
    life.claim()
    life.claim().release()
    life.claim()


def after_a_death_in_the_claim(life: Life) -> None:
    life.rewind(life.claim(), 5)
    life.claim_unsynced()
    life.claim()


def with_rewinds(life: Life) -> None:
    lease = life.claim()
    life.rewind(lease, 7)
    lease.release()
    life.rewind(life.claim(), 3)


LIVES = [first, again_and_again, after_a_death_in_the_claim, with_rewinds]


def judge(live: Callable[[Life], None], model: Model) -> tuple[int, int]:
    """(states, bad ones)."""
    with TemporaryDirectory(dir=MEMORY) as root:
        life = Life(root)
        life.store.probe()
        before = Tree.of(root)
        life.disk.calls.clear()
        live(life)
    assert any(isinstance(call, Note) for call in life.disk.calls)
    states = bad = 0
    for promised, tree in crash_states(before, life.disk.calls, model):
        states += 1
        bad += not holds(promised if isinstance(promised, tuple) else (0, ()), tree)
    return states, bad


def holds(promised: tuple[int, tuple[Line, ...]], tree: Tree) -> bool:
    epoch, lines = promised
    with TemporaryDirectory(dir=MEMORY) as root:
        tree.lay_out(root)
        store = LocalStore(f"{root}/c")
        lease = store.acquire("s")
        found = store.lines("s")
        lease.release()
        return lease.epoch > epoch and found[: len(lines)] == lines


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("live", LIVES)
def test_an_epoch_that_was_given_out_is_never_given_out_again(
    live: Callable[[Life], None], model: Model
) -> None:
    states, bad = judge(live, model)

    print(f"\n{live.__name__:30} {model} {bad}/{states}")
    assert states > 5
    assert bad == 0


# --- mutants: the epoch stands in two places (slot and name of the alive file), the lines in one -----------


def mutants() -> dict[str, tuple[ModuleType, ast.Module]]:
    found: dict[str, tuple[ModuleType, ast.Module]] = {}
    for module in (ledger, ownership):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("sync_data", "sync_folder")):
                name = f"{module.__name__.rpartition('.')[2]}: no {ast.unparse(node)}"
                found[name] = (module, without(module, node))
    one_slot = inspect.getsource(ledger).replace("record.turn % 2 * SLOT", "0")
    found["ledger: one slot"] = (ledger, ast.parse(one_slot))
    return found


def without(module: ModuleType, call: ast.Call) -> ast.Module:
    class Drop(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            if ast.dump(node) == ast.dump(call):
                return ast.copy_location(ast.Constant(True), node)
            return self.generic_visit(node)

    tree: ast.Module = Drop().visit(ast.parse(inspect.getsource(module)))
    return ast.fix_missing_locations(tree)


MUTANTS = mutants()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_claim_is_convicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, tree = MUTANTS[name]
    mutant = ModuleType(module.__name__)
    exec(compile(tree, "<mutant>", "exec"), mutant.__dict__)
    if module is ledger:
        for part in ("Record", "Slots", "read_record"):
            monkeypatch.setattr(ownership, part, getattr(mutant, part))
    else:
        for part in ("LocalLease", "Ownership"):
            monkeypatch.setattr(local, part, getattr(mutant, part))

    verdicts = [judge(live, "subset") for live in LIVES]

    print(f"\n{name:60} {sum(bad for _, bad in verdicts)}/{sum(states for states, _ in verdicts)}")
    assert sum(bad for _, bad in verdicts) > 0


def test_every_sync_of_the_claim_has_its_mutant() -> None:
    assert len(MUTANTS) == 4
