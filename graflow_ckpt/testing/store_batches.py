"""The contract of many at once: the newest of all, by session, workflow and status; deleting a list."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.trios import all_of, listed, meta_of, named, own_name, path_of, put, put_meta, read

MANY = 130  # more than one transaction of any store that deletes in batches

WANTED = [  # session, workflow, status; None: whatever it is
    ("s", None, None),
    ("x", None, None),  # there are an X and a T, and no x and t
    (None, "w", None),
    (None, "w_", None),  # nor is _ any letter
    (None, None, "failed"),
    (None, None, "Failed"),
    ("s", "w", "failed"),
    ("T", "W_", None),
    ("X", None, "running"),
    (None, "w", "paused"),
]


class BatchContract(Contract):
    """Choosing looks at everything, deleting at what it was told; both count right."""

    def test_the_newest_come_first_also_between_sessions(self, opener: Opener) -> None:
        store = opener()
        for number, (name, session) in enumerate(
            [
                (own_name("s", 1), "s"),
                (own_name("t", 1), "t"),
                ("best", "s"),
                (own_name("s", 2), "s"),
                (own_name("u", 1), "u"),
                (own_name("t", 2), "t"),
                ("best", "t"),
                (own_name("s", 10), "s"),
            ]
        ):
            _put_at(store, name, number, session=session)

        expected = [own_name("s", 10), "best", own_name("t", 2), own_name("u", 1), own_name("s", 2)]
        expected += [own_name("t", 1), own_name("s", 1)]
        for handle in (store, opener()):
            for limit in (1, 3, 7, 1000, 10**20):
                assert _newest(handle, limit) == [named(name) for name in expected[:limit]]
        assert _newest(store, 0) == _newest(store, -1) == []

    def test_the_newest_are_chosen_by_session_workflow_and_status(self, opener: Opener) -> None:
        store = opener()
        for number in range(24):
            whose, its_workflow, its_status = _facts(number)
            name = own_name(whose, number + 1)
            _put_at(store, name, number, whose, workflow=its_workflow, status=its_status)
        _put_at(store, "best", 24, "s", workflow="w", status="paused")
        everything = [
            (_facts(number), named(own_name(_facts(number)[0], number + 1))) for number in range(24)
        ]
        everything.append((("s", "w", "paused"), "best"))

        for wanted in WANTED:
            fit = [name for facts, name in everything if _fits(facts, wanted)]
            asked = dict(zip(("session", "workflow", "status"), wanted, strict=True))
            for limit in (2, 100):
                found = store.newest(limit, **asked)
                assert [named(path) for path, _ in found] == fit[::-1][:limit], wanted

    def test_the_newest_are_chosen_by_what_their_metas_say_now(self, opener: Opener) -> None:
        store, other = opener(), opener()
        path = _put_at(store, "best", 1, status="running")
        assert _newest(other, 5, status="running") == ["best"]

        newer = meta_of("alone", facts={"status": "completed", "created_at": _time(2)})
        put_meta(store, "best", newer)

        for handle in (store, other):
            assert _newest(handle, 5, status="running") == []
            found = handle.newest(5, status="completed")
            assert [(named(path), raw) for path, raw in found] == [("best", newer)]
            assert handle.takes(found[0][0]) is not None
        store.delete(path)
        assert _newest(other, 5) == _newest(other, 5, status="completed") == []

    def test_within_a_session_a_clock_that_is_put_back_makes_nothing_older(self, opener: Opener) -> None:
        store = opener()
        for sequence in range(1, 6):
            _put_at(store, own_name("s", sequence), 50 - sequence)

        expected = [named(own_name("s", sequence)) for sequence in (5, 4, 3, 2, 1)]
        assert _newest(store, 10, session="s") == _newest(store, 10) == expected
        assert _newest(store, 2) == expected[:2]

    @pytest.mark.parametrize("meta", [b"", b"\xff\x00", b"[]", b"{", b'{"created_at": [1]}'])
    def test_a_damaged_one_is_among_the_newest_and_fits_no_workflow(
        self, opener: Opener, meta: bytes
    ) -> None:
        store = opener()
        _put_at(store, own_name("s", 1), 1, workflow="w")
        put_meta(store, own_name("s", 2), meta)

        damaged, sound = named(own_name("s", 2)), named(own_name("s", 1))
        assert _newest(store, 2) == _newest(store, 2, session="s") == [damaged, sound]
        assert store.newest(1)[0][1] == meta
        assert _newest(store, 2, workflow="w") == _newest(store, 2, status="running") == [sound]

    def test_a_list_is_deleted_and_what_was_there_is_counted(self, opener: Opener) -> None:
        store, other = opener(), opener()
        paths = [put_meta(store, own_name("s", n), meta_of("alone")) for n in range(1, MANY + 1)]
        kept = [put(store, name, "kept") for name in ("best", "best1", own_name("t"))]
        gone = [put(store, name, "gone") for name in ("*", "bes_", own_name("u"))]

        missing = [path_of(store, "none"), path_of(store, own_name("s", MANY + 1))]
        count = store.delete_many(iter([missing[0], *paths[:-2], *gone, *missing, gone[0], paths[0]]))

        assert count == MANY - 2 + len(gone)
        newest = [named(own_name("s", sequence)) for sequence in (MANY, MANY - 1)]
        assert sorted(listed(other)) == sorted([*newest, *map(named, kept)])
        assert [read(other, path).stage for path in kept] == ["kept"] * 3
        for path in gone:
            with pytest.raises(CheckpointNotFound):
                other.meta(path)
        assert store.delete_many([]) == store.delete_many(gone) == 0

    def test_parts_of_what_a_list_has_deleted_do_not_come_back(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "best", "one")

        assert store.delete_many([path]) == 1

        put_meta(store, "best", meta_of("one"), "one")
        with pytest.raises(CheckpointError):
            all_of(store.open(path, "pkl", "one"))

    def test_a_list_with_something_that_is_no_checkpoint_deletes_nothing(self, opener: Opener) -> None:
        store = opener()
        paths = [put(store, name, "one") for name in ("best", "best1")]

        with pytest.raises(CheckpointError):
            store.delete_many([*paths, path_of(store, "")])

        assert sorted(listed(store)) == ["best", "best1"]

    def test_what_several_delete_at_once_is_counted_once(self, opener: Opener) -> None:
        store, other = opener(), opener()
        paths = [put_meta(store, f"n{number}", meta_of("alone")) for number in range(MANY)]
        start = threading.Barrier(3)

        def delete(handle: CheckpointStore, these: Sequence[str]) -> int:
            start.wait()
            return handle.delete_many(these)

        with ThreadPoolExecutor(3) as pool:
            orders = [(store, paths), (other, paths[::-1]), (other, paths[50:] + paths[:50])]
            counts = [job.result() for job in [pool.submit(delete, *order) for order in orders]]

        assert sum(counts) == MANY
        assert listed(store) == []


def _time(number: int) -> str:
    return f"2026-01-01T00:00:{number:02}.500000+00:00"


def _put_at(store: CheckpointStore, name: str, number: int, session: str = "s", **facts: str) -> str:
    said = {"created_at": _time(number), **facts}
    stage = f"n{number}"  # the same would be the same checkpoint, sealed anew
    return put_meta(store, name, meta_of(stage, session=session, facts=said), stage)


def _newest(store: CheckpointStore, limit: int, **wanted: str) -> list[str]:
    return [named(path) for path, _ in store.newest(limit, **wanted)]


def _facts(number: int) -> tuple[str, str, str]:
    """Session, workflow and status of the checkpoints of one of the tests."""
    workflow = ("w", "W_", "w_")[number % 2 + (number > 11)]
    return "sTX"[number % 3], workflow, "running" if number % 4 else "failed"


def _fits(facts: tuple[str, str, str], wanted: tuple[str | None, ...]) -> bool:
    return all(want in (None, fact) for want, fact in zip(wanted, facts, strict=True))
