"""The contract of listings and names: complete, fresh, newest first, and true to the bytes of each meta.

Of many at once: the newest of all, by session, workflow and status; deleting a list. What a checkpoint or a
session is called has no other meaning: a name may hold anything but "/", "?" and NUL, which part a path.
Not here: file systems that do not tell upper from lower case.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from graflow_ckpt.core.errors import BadSessionId, CheckpointError, CheckpointNotFound
from graflow_ckpt.core.protocols import CheckpointStore
from tests.conformance.contracts.trio import Contract, Opener
from tests.trios import (
    listed,
    meta_of,
    named,
    own_name,
    owning,
    path_of,
    put,
    put_meta,
    put_own,
    read,
)

MANY = 230  # more than one page of any store that reads in pages
DAMAGED = [b"", b"\xff\xfe\x00damaged", b"[]", b"null", b'"text"', b"{", b"[" * 100_000, b'{"session_id": 7}']
DAMAGED += [b'{"session_id": 7, "epoch": 1e400}', b'{"session_id": "s\\u0000"}', b'"\\ud800"']


class ListingContract(Contract):
    """Whoever lists sees what is there, and nothing else."""

    def test_an_empty_store_has_nothing(self, opener: Opener) -> None:
        store = opener()

        assert listed(store) == listed(store, "s") == []
        assert listed(store, None, path_of(store, "*")) == []
        assert store.owner("s") is None
        assert list(store.segments("s")) == []
        store.drop_segments("s", 10)

    def test_the_newest_of_a_session_comes_first(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            for sequence in range(1, 13):  # in the order of letters 10 comes before 9
                put_own(store, lease, sequence)

        expected = [named(own_name(sequence=sequence)) for sequence in range(12, 0, -1)]
        for handle in (store, opener()):
            assert listed(handle, "s") == expected
            assert listed(handle) == expected

    def test_a_session_finds_its_own_and_what_names_it(self, opener: Opener) -> None:
        store = opener()
        put(store, own_name("s"), "own")
        put(store, own_name("t"), "other", session="t")
        put(store, "best", "best", session="s")
        put(store, "worst", "worst", session="t")
        put(store, "nobodys", "nobodys", session="")

        assert sorted(listed(store, "s")) == ["best", named(own_name("s"))]
        assert sorted(listed(store, "t")) == [named(own_name("t")), "worst"]
        assert listed(store, "u") == []
        assert len(listed(store)) == 5

    def test_a_name_changes_sessions_with_its_meta(self, opener: Opener) -> None:
        store = opener()
        put(store, "best", "one", session="s")

        put(store, "best", "two", session="t")

        assert listed(store, "s") == []
        assert listed(store, "t") == ["best"]

    def test_a_pattern_selects_names(self, opener: Opener) -> None:
        store = opener()
        for name in ("best1", "best2", "Best3", "a[1]", "rest"):
            put(store, name, "one", session="s" if name != "best2" else "t")

        def found(pattern: str, session: str | None = None) -> list[str]:
            return sorted(listed(store, session, path_of(store, pattern)))

        assert found("best*") == ["best1", "best2"]
        assert found("*est*") == ["Best3", "best1", "best2", "rest"]
        assert found("best[13]") == ["best1"]
        assert found("best*", "t") == ["best2"]
        assert found("none*") == []
        assert len(found("*")) == 5

    def test_what_is_listed_is_found_under_its_path(self, opener: Opener) -> None:
        store = opener()
        for name in ("best", "a b%", own_name()):
            put(store, name, "one")

        found = list(store.list())

        assert len(found) == 3
        for path, raw in found:
            assert store.takes(path) is not None
            assert read(store, path).meta == raw

    def test_another_handle_lists_at_once_what_was_put_replaced_or_deleted(self, opener: Opener) -> None:
        store, other = opener(), opener()
        assert listed(other) == []
        paths = [put(store, f"n{number}", "one") for number in range(3)]
        assert sorted(listed(other)) == ["n0", "n1", "n2"]

        put(store, "n1", "two")
        assert {json.loads(raw)["stage"] for _, raw in other.list()} == {"one", "two"}

        for path in paths:
            store.delete(path)
            assert named(path) not in listed(other)

    @pytest.mark.parametrize("name", ["best", own_name()], ids=["named", "own"])
    def test_damaged_metas_are_kept_and_listed_as_they_are(self, opener: Opener, name: str) -> None:
        store = opener()
        for meta in DAMAGED:
            path = put_meta(store, name, meta)

            assert store.meta(path) == meta
            assert [raw for _, raw in store.list()] == [meta]
            assert listed(store, "s") == ([named(name)] if name == own_name() else [])
        assert store.delete(path) is True

    def test_metas_are_kept_to_the_byte(self, opener: Opener) -> None:
        store = opener()
        odd = b'{"session_id":"s",  "stage": "alone", "n": 1.0, "n": 1e3, "\\u00e9": "\xc3\xa9"}\n\n'

        path = put_meta(store, "best", odd)

        assert store.meta(path) == odd
        assert [raw for _, raw in store.list("s")] == [odd]

    def test_many_are_listed_once_each(self, opener: Opener) -> None:
        store = opener()
        for number in range(MANY):
            session = f"s{number % 3}"
            meta = meta_of("alone", session=session, sequence=number + 1)
            put_meta(store, own_name(session, number + 1), meta)

        everything = listed(store)

        assert len(everything) == len(set(everything)) == MANY
        of_one = [named(own_name("s1", number + 1)) for number in range(MANY) if number % 3 == 1]
        assert listed(store, "s1") == of_one[::-1]

    def test_a_listing_goes_on_while_checkpoints_come_and_go(self, opener: Opener) -> None:
        store, other = opener(), opener()
        for number in range(20):
            put_meta(store, f"n{number}", meta_of("alone"))
        found = store.list()

        first = named(next(found)[0])
        gone = [f"n{number}" for number in range(0, 20, 2) if f"n{number}" != first]
        for name in gone:
            other.delete(path_of(other, name))
        put(other, "new", "new")
        names = [first, *(named(path) for path, _ in found)]

        assert len(names) == len(set(names))
        assert {f"n{number}" for number in range(20)} - set(gone) <= set(names)
        assert set(names) <= {"new", *(f"n{number}" for number in range(20))}
        assert not set(gone) & set(listed(store))

    def test_a_listing_that_is_not_read_to_its_end_holds_nothing_up(self, opener: Opener) -> None:
        store, other = opener(), opener()
        for number in range(3):
            put(store, f"n{number}", "one")
        found = store.list()
        next(found)

        for handle in (other, store):
            put(handle, "n1", "two")
            assert handle.delete(path_of(handle, "n1")) is True

        del found
        assert sorted(listed(store)) == ["n0", "n2"]


# --- names ---------------------------------------------------------------------------------


ODD = [
    "with space", " before", "after ", "100%", "%2F%00", "a#b", "it's", 'say "x"', "a[1]", "semi;colon",
    "-dash", "$(true)", "a,b", "{x}", "~", "a:b", "a@b", "a=b&c", "back\\slash", "new\nline", "ünï cødé",
    "日本", "🙂", "a.b.c", "pkl", "x.pkl.y", "'; DROP TABLE checkpoints; --", "None", "0", "session_s_step_1",
    ".hidden",
]  # fmt: skip
ALIKE = ["s", "S", "s_", "s-", "s_step_1_1-1", "a_b", "axb", "a-b", "ab", "session_s_step_1_1-1"]


class NamesContract(Contract):
    """Odd names work, and names that are alike are apart."""

    @pytest.mark.parametrize("names", [ODD[at::3] for at in range(3)], ids=["one", "two", "three"])
    def test_odd_names_are_just_names(self, opener: Opener, names: list[str]) -> None:
        store = opener()
        paths = {name: put(store, name, f"n{at}") for at, name in enumerate(names)}

        for at, (name, path) in enumerate(paths.items()):
            assert read(store, path).stage == f"n{at}", name
        assert sorted(listed(store)) == sorted(names)
        for path, _ in list(store.list()):
            assert store.delete(path) is True
        assert listed(store) == []

    def test_names_that_differ_a_little_are_different(self, opener: Opener) -> None:
        store = opener()
        names = ["best", "Best", "best ", "best_", "best1", "\u00e9", "e\u0301", "a_b", "axb", "a%b", "a%%b"]
        paths = [put(store, name, f"n{at}") for at, name in enumerate(names)]

        store.delete(paths.pop())

        assert [read(store, path).stage for path in paths] == [f"n{at}" for at in range(len(paths))]
        assert sorted(listed(store)) == sorted(names[:-1])

    def test_wildcards_in_a_name_are_letters(self, opener: Opener) -> None:
        store = opener()
        kept = put(store, "ab", "kept")
        wild = ["a*", "a_", "a%", "[a]b", "*"]

        for name in wild:
            with pytest.raises(CheckpointNotFound):
                store.meta(path_of(store, name))
            assert store.delete(path_of(store, name)) is False
            put(store, name, "wild")
            assert store.delete(path_of(store, name)) is True

        assert read(store, kept).stage == "kept"
        assert listed(store) == ["ab"]

    def test_a_long_name_is_not_cut(self, opener: Opener) -> None:
        store = opener()
        one, two = "x" * 199 + "1", "x" * 199 + "2"

        paths = [put(store, one, "one"), put(store, two, "two")]

        assert [read(store, path).stage for path in paths] == ["one", "two"]
        assert sorted(listed(store)) == [one, two]

    def test_it_takes_its_own_paths_and_no_others(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "best", "one")

        for own in (path, f"{path}.pkl", path_of(store, own_name()), next(iter(store.list()))[0]):
            taken = store.takes(own)
            assert taken is not None
            assert named(taken) == named(own)
        assert read(store, str(store.takes(path))).stage == "one"
        for foreign in ("nosuch://host/0/best", "nosuch://best"):
            assert store.takes(foreign) is None

    @pytest.mark.parametrize("session", ["", "a/b", "..", "a*", "a b", "a.b", "é", "x" * 65, "a\n"])
    def test_what_is_no_session_id_is_refused(self, opener: Opener, session: str) -> None:
        store = opener()

        for ask in (store.acquire, store.owner, lambda of: list(store.segments(of))):
            with pytest.raises(BadSessionId):
                ask(session)

    def test_checkpoints_of_sessions_whose_ids_are_alike_are_apart(self, opener: Opener) -> None:
        store = opener()
        for session in ALIKE:
            with owning(store, session) as lease:
                put_own(store, lease, 1, f"of-{ALIKE.index(session)}")

        for at, session in enumerate(ALIKE):
            assert listed(store, session) == [named(own_name(session))]
            assert read(store, path_of(store, own_name(session))).stage == f"of-{at}"
        for gone in ALIKE[::2]:
            store.delete(path_of(store, own_name(gone)))
        assert sorted(listed(store)) == sorted(named(own_name(session)) for session in ALIKE[1::2])


# --- many at once --------------------------------------------------------------------------


MANY_GONE = 130  # more than one transaction of any store that deletes in batches

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
            whose, its_workflow, its_status = _facts_of(number)
            name = own_name(whose, number + 1)
            _put_at(store, name, number, whose, workflow=its_workflow, status=its_status)
        _put_at(store, "best", 24, "s", workflow="w", status="paused")
        everything = [
            (_facts_of(number), named(own_name(_facts_of(number)[0], number + 1))) for number in range(24)
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
        paths = [put_meta(store, own_name("s", n), meta_of("alone")) for n in range(1, MANY_GONE + 1)]
        kept = [put(store, name, "kept") for name in ("best", "best1", own_name("t"))]
        gone = [put(store, name, "gone") for name in ("*", "bes_", own_name("u"))]

        missing = [path_of(store, "none"), path_of(store, own_name("s", MANY_GONE + 1))]
        count = store.delete_many(iter([missing[0], *paths[:-2], *gone, *missing, gone[0], paths[0]]))

        assert count == MANY_GONE - 2 + len(gone)
        newest = [named(own_name("s", sequence)) for sequence in (MANY_GONE, MANY_GONE - 1)]
        assert sorted(listed(other)) == sorted([*newest, *map(named, kept)])
        assert [read(other, path).stage for path in kept] == ["kept"] * 3
        for path in gone:
            with pytest.raises(CheckpointNotFound):
                other.meta(path)
        assert store.delete_many([]) == store.delete_many(gone) == 0

    def test_a_list_with_something_that_is_no_checkpoint_deletes_nothing(self, opener: Opener) -> None:
        store = opener()
        paths = [put(store, name, "one") for name in ("best", "best1")]

        with pytest.raises(CheckpointError):
            store.delete_many([*paths, path_of(store, "")])

        assert sorted(listed(store)) == ["best", "best1"]

    def test_what_several_delete_at_once_is_counted_once(self, opener: Opener) -> None:
        store, other = opener(), opener()
        paths = [put_meta(store, f"n{number}", meta_of("alone")) for number in range(MANY_GONE)]
        start = threading.Barrier(3)

        def delete(handle: CheckpointStore, these: Sequence[str]) -> int:
            start.wait()
            return handle.delete_many(these)

        with ThreadPoolExecutor(3) as pool:
            orders = [(store, paths), (other, paths[::-1]), (other, paths[50:] + paths[:50])]
            counts = [job.result() for job in [pool.submit(delete, *order) for order in orders]]

        assert sum(counts) == MANY_GONE
        assert listed(store) == []


def _time(number: int) -> str:
    return f"2026-01-01T00:00:{number:02}.500000+00:00"


def _put_at(store: CheckpointStore, name: str, number: int, session: str = "s", **facts: str) -> str:
    said = {"created_at": _time(number), **facts}
    stage = f"n{number}"  # the same would be the same checkpoint, sealed anew
    return put_meta(store, name, meta_of(stage, session=session, facts=said), stage)


def _newest(store: CheckpointStore, limit: int, **wanted: str) -> list[str]:
    return [named(path) for path, _ in store.newest(limit, **wanted)]


def _facts_of(number: int) -> tuple[str, str, str]:
    """Session, workflow and status of the checkpoints of one of the tests."""
    workflow = ("w", "W_", "w_")[number % 2 + (number > 11)]
    return "sTX"[number % 3], workflow, "running" if number % 4 else "failed"


def _fits(facts: tuple[str, str, str], wanted: tuple[str | None, ...]) -> bool:
    return all(want in (None, fact) for want, fact in zip(wanted, facts, strict=True))
