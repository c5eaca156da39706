"""Any order of saves, deletes, forks, re-seals and crashes: every kept checkpoint has what it holds, and
nothing else stays.

The stores are the real ones; a crash is a save that stops somewhere and is never ended, before a new owner
takes its session over. Processes that are really killed: tests/conformance/test_stores.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from graflow_ckpt.core.protocols import Lease, Sink
from tests.trios import (
    content,
    contents_of,
    held,
    listed,
    meta_holding,
    name_of,
    named,
    own_name,
    path_of,
    pieces,
    put_holding,
    put_meta,
    there,
    writer,
)  # fmt: skip
from tests.unit.checkpoint.kept import InMemory, InObjects, InPostgres, InRedis, InSqlite, Kept

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
NAMES = [own_name("s", 9), own_name("f", 9), "asking"]
CONTENTS = [content(number, 1000 + number) for number in range(5)]

some = st.lists(st.sampled_from(CONTENTS), unique=True, max_size=4)
numbers = st.integers(1, 4)


class Crash(BaseException):
    """The process is gone."""


class Machine(RuleBasedStateMachine):
    kind: type[Kept]

    @initialize()
    def open(self) -> None:
        self.folder = TemporaryDirectory(dir=MEMORY)
        self.kept = self.kind(Path(self.folder.name))
        self.store = self.kept.store
        self.expected: dict[str, tuple[str, list[bytes]]] = {}  # name: stage, contents
        self.turn = 0
        self.lease: Lease = self.store.acquire("s")
        self.fork: Lease = self.store.acquire("f")

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.lease.release()
            self.fork.release()
            self.folder.cleanup()

    def stage(self) -> str:
        self.turn += 1
        return f"n{self.turn}"

    # --- what happens ------------------------------------------------------------------

    @rule(number=numbers, contents=some)
    def save(self, number: int, contents: list[bytes]) -> None:
        self._put(own_name("s", number), contents, self.lease)

    @rule(contents=some)
    def save_under_a_name_of_somebodys(self, contents: list[bytes]) -> None:
        self._put("best", contents, self.lease)

    @rule(number=numbers)
    def fork_the_newest(self, number: int) -> None:
        for name in list(self.expected)[-1:]:
            self._put(own_name("f", number), self.expected[name][1], self.fork)

    @rule(number=st.integers(0, 20))
    def delete(self, number: int) -> None:
        if self.expected:
            name = list(self.expected)[number % len(self.expected)]
            assert self.store.delete(path_of(self.store, name))
            del self.expected[name]

    @rule()
    def prune(self) -> None:
        going = list(self.expected)[:-1]
        assert self.store.delete_many([path_of(self.store, name) for name in going]) == len(going)
        for name in going:
            del self.expected[name]

    @rule(number=st.integers(0, 20))
    def seal_again(self, number: int) -> None:
        if self.expected:
            name = list(self.expected)[number % len(self.expected)]
            stage, contents = self.expected[name]
            put_meta(self.store, name, meta_holding(stage, map(name_of, contents)), stage)

    @rule(number=numbers, contents=some, moment=st.sampled_from(["found", "added", "settled", "meta"]))
    def crash(self, number: int, contents: list[bytes], moment: str) -> None:
        stage, name = self.stage(), own_name("s", number)
        path = path_of(self.store, name)
        saving = contents_of(self.store).saving(path, lease=self.lease, stage=stage)

        def values(sink: Sink) -> None:
            found = saving.hold([name_of(data) for data in contents])
            self._die_at("found", moment)
            for data in contents:
                if name_of(data) not in found:
                    saving.add(name_of(data), len(data), pieces(data))
            self._die_at("added", moment)
            saving.settle()
            self._die_at("settled", moment)

        def meta(sink: Sink) -> None:
            writer(meta_holding(stage, map(name_of, contents)))(sink)
            raise Crash

        with pytest.raises(Crash):
            self.store.put(path, [("pkl", values), ("meta.json", meta)], lease=self.lease, stage=stage)
        former, self.lease = self.lease, self.store.acquire("s", take_over=True)
        former.release()  # of no effect by now, but that its keeper ends

    @rule()
    def sweep(self) -> None:
        contents_of(self.store).sweep()

    # --- what always holds -------------------------------------------------------------

    @invariant()
    def every_checkpoint_is_whole_and_nothing_else_is_there(self) -> None:
        if not hasattr(self, "store"):
            return
        assert set(listed(self.store)) == {named(name) for name in self.expected}
        scopes = {self.kept.scope(name): (name, set[bytes]()) for name in NAMES}
        for name, (_, contents) in self.expected.items():
            assert held(self.store, path_of(self.store, name)) == contents
            scopes.setdefault(self.kept.scope(name), (name, set()))[1].update(contents)
        assert self.kept.stored() == sorted(len(data) for _, union in scopes.values() for data in union)
        for name, union in scopes.values():
            assert there(self.store, CONTENTS, name) == union

    def _put(self, name: str, contents: Sequence[bytes], lease: Lease) -> None:
        stage = self.stage()
        put_holding(self.store, name, stage, contents, lease=lease)
        self.expected.pop(name, None)
        self.expected[name] = (stage, list(contents))

    @staticmethod
    def _die_at(here: str, moment: str) -> None:
        if here == moment:
            raise Crash


def run(kind: type[Kept], examples: int, steps: int = 18) -> None:
    machine = type("Machine", (Machine,), {"kind": kind}).TestCase
    machine.settings = settings(
        max_examples=-(-examples * settings.default.max_examples // 100),  # as the profile has it
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    machine().runTest()


@pytest.mark.parametrize("kind", [InMemory, InSqlite])
def test_whatever_happens_what_is_kept_is_whole_and_nothing_else_stays(kind: type[Kept]) -> None:
    run(kind, 20)


def test_whatever_happens_in_postgres_what_is_kept_is_whole_and_nothing_else_stays(postgres_url: str) -> None:
    run(InPostgres.of(postgres_url), 5)


def test_whatever_happens_in_redis_what_is_kept_is_whole_and_nothing_else_stays(redis_url: str) -> None:
    run(InRedis.of(redis_url), 10)


def test_whatever_happens_in_a_bucket_what_is_kept_is_whole_and_nothing_else_stays(objects_url: str) -> None:
    run(InObjects.of(objects_url), 4, steps=12)
