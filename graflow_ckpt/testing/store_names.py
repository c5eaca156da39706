"""The contract of names: what a checkpoint or a session is called has no other meaning.

A name may hold anything but "/", "?" and NUL, which part a path. Not here: file systems that do not
tell upper from lower case.
"""

from __future__ import annotations

import pytest

from graflow_ckpt.core.errors import BadSessionId, CheckpointNotFound
from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.trios import listed, named, own_name, owning, path_of, put, put_own, read

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
