"""Two machines, one session, a store that each loses and finds again, deaths and takeovers in any order.

What was confirmed is somewhere, and history in the store never goes back to an older owner.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from graflow_ckpt.core.errors import Fenced, ServerGone, SessionBusy
from graflow_ckpt.stores.around.fallback import Fallback, FallbackLease
from graflow_ckpt.stores.around.patience import Breaker
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.trios import listed, meta_of, named, own_name, parts_of, path_of, read, writer
from tests.unit.stores.outages import Cable, Far

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # nothing here is about what a disk keeps
MACHINES = st.sampled_from(["a", "b"])


class Machine:
    """One computer: its way to the store, its folder, and what it owns."""

    def __init__(self, name: str, folder: Path, clock: list[float]) -> None:
        self._clock = clock
        self._folder = str(folder / name)
        self.far = Far(MemoryStore("memory://machines"), Cable(folder / f"{name} is cut"))
        self.lease: FallbackLease | None = None
        self.boot()

    def boot(self) -> None:
        """A new process. What the former one had locked is free, what it owned in the store is not."""
        if self.lease is not None and self.lease._local is not None:
            self.lease._local.release()
        self.lease = None
        self.store = Fallback(self.far, self._folder, breaker=Breaker(1, 5.0, clock=lambda: self._clock[0]))

    def has(self, name: str) -> bool:
        waits = self.store.waits
        return name in (named(entry.base) for entry in waits.waiting()) or name in listed_in(waits.refused)


def listed_in(store: LocalStore) -> list[str]:
    return listed(store) if Path(store.folder).is_dir() else []


class Machines(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._temporary = TemporaryDirectory(dir=MEMORY)
        self.clock = [0.0]
        self.remote = MemoryStore("memory://machines")
        self.remote.forget()
        folder = Path(self._temporary.name)
        self.machines = {name: Machine(name, folder, self.clock) for name in ("a", "b")}
        self.confirmed: dict[str, str] = {}  # by name: the machine that has saved it
        self.saves = 0
        self.seen: dict[str, int] = {}  # what is in the store, with its epoch

    def teardown(self) -> None:
        for machine in self.machines.values():
            if machine.lease is not None:
                machine.lease.release()
        self.remote.forget()
        self._temporary.cleanup()

    @rule(machine=MACHINES)
    def lose_the_store(self, machine: str) -> None:
        self.machines[machine].far.cable.cut()

    @rule(machine=MACHINES, dies=st.booleans())
    def save_in_an_outage(self, machine: str, dies: bool) -> None:
        self.own_the_session(machine, take_over=True)
        self.lose_the_store(machine)
        self.save(machine, 2)
        if dies:
            self.die(machine)
        self.find_it_again(machine)

    @rule(machine=MACHINES)
    def find_it_again(self, machine: str) -> None:
        self.machines[machine].far.cable.mend()
        self.clock[0] += 5.0

    @rule(machine=MACHINES, arrived=st.booleans())
    def lose_one_call(self, machine: str, arrived: bool) -> None:
        self.machines[machine].far.fails = [("put", arrived)]

    @rule(machine=MACHINES, take_over=st.booleans())
    def own_the_session(self, machine: str, take_over: bool) -> None:
        it = self.machines[machine]
        if it.lease is not None:
            return
        with suppress(ServerGone, SessionBusy):
            it.lease = it.store.acquire("s", take_over=take_over)

    @rule(machine=MACHINES, times=st.integers(1, 3))
    def save(self, machine: str, times: int) -> None:
        it = self.machines[machine]
        for _ in range(times):
            if it.lease is None:
                return
            self.saves += 1
            name, stage = own_name("s", self.saves), f"n{self.saves}"
            meta = meta_of(stage, sequence=self.saves).replace(b'"epoch": 1', b'"epoch": %d' % it.lease.epoch)
            parts = [*parts_of(stage)[:2], ("meta.json", writer(meta))]
            try:
                it.store.put(path_of(it.store, name), parts, lease=it.lease, stage=stage)
            except Fenced:
                it.lease.release()
                it.lease = None
            else:
                self.confirmed[named(name)] = machine

    @rule(machine=MACHINES)
    def die(self, machine: str) -> None:
        self.machines[machine].boot()

    @rule(machine=MACHINES)
    def release(self, machine: str) -> None:
        it = self.machines[machine]
        if it.lease is not None:
            it.lease.release()
            it.lease = None

    @invariant()
    def what_was_confirmed_is_somewhere(self) -> None:
        there = set(listed(self.remote))
        for name, machine in self.confirmed.items():
            assert name in there or self.machines[machine].has(name), name

    @invariant()
    def history_does_not_go_back(self) -> None:
        there = {named(path): json.loads(raw)["epoch"] for path, raw in self.remote.list()}
        oldest = max(self.seen.values(), default=0)
        new = {name: epoch for name, epoch in there.items() if name not in self.seen}
        assert all(epoch >= oldest for epoch in new.values()), (self.seen, new)
        for name in new:
            assert read(self.remote, path_of(self.remote, name)).values
        self.seen = there


Machines.TestCase.settings = settings(
    max_examples=-(-60 * settings.default.max_examples // 100), stateful_step_count=25, deadline=None
)
TestMachines = Machines.TestCase
