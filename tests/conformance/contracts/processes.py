"""The contract of processes: what was confirmed survives a kill, and who was away finds out.

Each test starts some, and kills or stops them where it hurts. A store in memory cannot be tested so.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from graflow_ckpt.core.errors import CheckpointNotFound, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore
from tests.conformance.companion import Companion
from tests.conformance.contracts.contract import Contract, Opener
from tests.conformance.contracts.journal import segments
from tests.trios import listed, named, own_name, path_of, put, put_own, read


class ProcessContract(Contract):
    """Kills, stops, races and forks."""

    def test_processes_see_what_others_have_written(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "best", "mine", size=70_000)

        with Companion(opener, "read_one", path) as other:
            assert other.hear() == ["mine", 70_000]
            assert other.wait() == 0

        assert listed(store, "child") == [named(own_name("child"))]
        assert read(store, path_of(store, own_name("child"))).stage == "child"
        assert [raw for _, _, raw in segments(store, "child")] == [b"of the child;"]
        assert store.owner("child") is None

    def test_what_was_confirmed_survives_a_kill(self, opener: Opener) -> None:
        with Companion(opener, "put_and_die") as other:
            epoch = other.hear()
            other.wait()

        store = opener()
        assert read(store, path_of(store, own_name())).stage == "n1"
        assert read(store, path_of(store, "best")).stage == "best"
        assert sorted(listed(store)) == ["best", named(own_name())]
        assert segments(store) == [(epoch, 1, b"frame;")]

    def test_the_session_of_a_killed_process_becomes_free(self, opener: Opener) -> None:
        with Companion(opener, "put_and_die") as other:
            epoch, pid = other.hear(), other.pid
            other.wait()

            store = opener()
            lease = self.acquired(store)

        assert lease.epoch > epoch
        assert lease.taken_from is not None
        assert lease.taken_from.pid == pid
        put_own(store, lease, 2)
        store.journal(lease, 2).append(b"newer;")
        assert [raw for _, _, raw in segments(store)] == [b"frame;", b"newer;"]
        lease.release()
        assert store.owner("s") is None

    @pytest.mark.parametrize("part", ["pkl", "meta.json"])
    def test_a_writer_that_is_killed_leaves_the_former_trios(self, opener: Opener, part: str) -> None:
        store = opener()
        paths = [put(store, name, "former") for name in ("best", own_name())]

        with Companion(opener, "die_in_a_put", part) as other:
            other.hear()
            other.wait()

        for path in paths:
            assert read(store, path).stage == "former"
        lease = self.acquired(store)
        put_own(store, lease, 1, "newer")
        put(store, "best", "newer")
        lease.release()
        for path in paths:
            assert read(opener(), path).stage == "newer"
        assert len(listed(store)) == 2

    @pytest.mark.parametrize("moment", [0.02, 0.09, 0.2])
    def test_killed_at_any_time_everything_is_whole(self, opener: Opener, moment: float) -> None:
        store = opener()
        with Companion(opener, "write_until_killed", "k") as other:
            said = [other.hear()]
            time.sleep(moment)
            other.kill()
            said += other.rest()

        last = {what: max(turn for of, turn in said if of == what) for what, _ in said}
        best = read(store, path_of(store, "best")).stage
        assert best in {f"n{last['best']}", f"n{last['best'] + 1}"}
        turn = last.get("own", 0)
        for sequence in range(1, turn + 1):
            cut_off = turn % 3 == 0 and sequence == turn - 1  # it may have been deleting that one
            _check_own(store, sequence, ["deleted", sequence] in said, cut_off)
        frames = b"".join(raw for _, _, raw in segments(store, "k"))
        count = len(frames) // 7
        assert count in (last.get("frame", 0), last.get("frame", 0) + 1)
        assert frames == b"".join(b"%06d;" % turn for turn in range(1, count + 1))
        lease = self.acquired(store, "k")
        put_own(store, lease, 1, "newer")
        lease.release()
        assert read(store, path_of(store, own_name("k", 1))).stage == "newer"

    def test_the_owner_in_another_process_is_named(self, opener: Opener) -> None:
        store = opener()
        with Companion(opener, "own") as other:
            other.hear()

            owner = store.owner("s")
            assert owner is not None
            assert owner.pid == other.pid
            with pytest.raises(SessionBusy) as busy:
                store.acquire("s")
            assert busy.value.ids["owner"].pid == other.pid
            assert str(other.pid) in str(busy.value)

            other.say()
            assert set(other.hear()) == {"done"}
            assert other.wait() == 0
        assert store.owner("s") is None

    def test_of_many_processes_one_is_the_owner(self, opener: Opener) -> None:
        with ExitStack() as stack:
            others = [stack.enter_context(Companion(opener, "compete")) for _ in range(3)]
            for other in others:
                assert other.hear() == "ready"
            for other in others:
                other.say()

            said = [other.hear() for other in others]

            owners = [pid for what, pid in said if what == "owner"]
            assert len(owners) == 1
            assert {pid for what, pid in said if what == "busy"} <= {owners[0], 0}
            for other in others:
                other.say()
            assert [other.wait() for other in others] == [0, 0, 0]
        assert opener().owner("s") is None

    def test_processes_that_write_at_once_lose_nothing(self, opener: Opener) -> None:
        sessions = ["a", "b", "c"]
        with ExitStack() as stack:
            others = [stack.enter_context(Companion(opener, "put_many", name, 8)) for name in sessions]
            for other in others:
                assert other.hear() == "ready"
            for other in others:
                other.say()
            for other in others:
                assert other.hear() == "done"
                assert other.wait() == 0

        store = opener()
        for session in sessions:
            expected = [named(own_name(session, sequence)) for sequence in range(8, 0, -1)]
            assert listed(store, session) == expected
        assert read(store, path_of(store, "best")).stage in {f"{session}-8" for session in sessions}

    def test_who_is_killed_while_it_deletes_a_list_leaves_its_end(self, opener: Opener) -> None:
        store = opener()
        paths = [put(store, own_name(sequence=sequence), f"n{sequence}") for sequence in range(1, 61)]

        with Companion(opener, "delete_many", paths) as other:
            assert other.hear() == "ready"
            end = time.monotonic() + self.patience
            while len(listed(store)) == len(paths):
                assert time.monotonic() < end, "nothing was deleted"
            other.kill()
            other.wait()

        left = listed(store)
        assert left == [named(own_name(sequence=sequence)) for sequence in range(60, 60 - len(left), -1)]
        for sequence in range(60, 60 - len(left), -1):
            assert read(store, path_of(store, own_name(sequence=sequence))).stage == f"n{sequence}"
        assert store.delete_many(paths) == len(left)

    def test_a_forked_child_owns_nothing(self, opener: Opener) -> None:
        store = opener()
        with Companion(opener, "fork") as other:
            assert other.hear() == 0, "the forked child could write, or met another error"
            assert other.wait() == 0

        assert listed(store) == [named(own_name(sequence=2))]
        assert [raw for _, _, raw in segments(store)] == [b"frame;frame;"]
        assert store.owner("s") is None


def _check_own(store: CheckpointStore, sequence: int, deleted: bool, may_be_gone: bool) -> None:
    path = path_of(store, own_name("k", sequence))
    try:
        assert read(store, path).stage == f"n{sequence}"
        assert not deleted, f"{path} was deleted, and is there"
    except CheckpointNotFound:
        assert deleted or may_be_gone, f"{path} was confirmed, and is lost"
