"""Bad input on every store: what test_bad_input.py does to files is done to what each store keeps.

Through the store, as anybody can who may write there. Full disks, permissions and servers that go away are
each store's own (tests/unit/stores).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, KeepLast, Workflow, task, workflow
from graflow_ckpt.core.errors import (
    BadSessionId,
    CheckpointCorrupt,
    CheckpointError,
    NoGoodCheckpoint,
    NotStorable,
    SchemaUnsupported,
    SessionBusy,
    UnknownKey,
    UnsafeCheckpoint,
)
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import new_key
from tests.trios import all_of, writer

Parts = dict[str, bytes]
Damage = Callable[[Parts, Parts], Parts]  # the checkpoint, and one of another session


def counting(store: str, session: str = "s") -> Workflow:
    """Six steps, and a checkpoint after each."""
    flow = workflow("count", session, store=store, keep=KeepLast(9))

    @task(inject_context=True)
    def step(context: Any) -> int:
        n: int = context.channel.get("n", 0) + 1
        context.channel.set("n", n)
        context.checkpoint({"n": n})
        if n < 6:
            context.next_iteration()
        return n

    flow.add(step)
    return flow


@pytest.fixture
def store(store_url: str) -> str:
    """Two sessions that have stopped after three checkpoints each."""
    for session in ("other", "s"):
        counting(store_url, session).execute(max_steps=3)
    return store_url


def newest(store: str, session: str = "s") -> str:
    return CheckpointManager.get_latest(session, store=store)


def parts_of(store: str, path: str) -> Parts:
    place = open_store(store)
    meta = place.meta(path)
    stage = json.loads(meta)["stage"]
    found = {part: all_of(place.open(path, part, stage)) for part in ("pkl", "state.json")}
    return {**found, "meta.json": meta}


def plant(store: str, path: str, parts: Parts, stage: str) -> None:
    writers = [(part, writer(data)) for part, data in parts.items()]
    open_store(store).put(path, writers, lease=None, stage=stage)


def flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def said(own: Parts, /, **fields: Any) -> Parts:
    return {**own, "meta.json": json.dumps({**json.loads(own["meta.json"]), **fields}).encode()}


def enormous(parts: Parts) -> Parts:
    of = json.loads(parts["meta.json"])["parts"]
    return said(parts, parts={part: {**one, "size": 1 << 60} for part, one in of.items()})


DAMAGES: dict[str, tuple[Damage, type[CheckpointError]]] = {
    **{
        f"{part} {how}": (
            lambda own, other, part=part, do=do: {**own, part: do(own[part])},
            CheckpointCorrupt,
        )
        for part in ("pkl", "state.json", "meta.json")
        for how, do in (
            ("truncated", lambda data: data[: len(data) // 2]),
            ("empty", lambda data: b""),
            *([("with a flipped bit", flipped)] if part != "meta.json" else []),
        )
    },
    "meta.json with a flipped bit": (
        lambda own, other: {**own, "meta.json": own["meta.json"].replace(b'"steps":3', b'"steps":4')},
        UnsafeCheckpoint,
    ),
    "values of another session": (lambda own, other: {**own, "pkl": other["pkl"]}, CheckpointCorrupt),
    "facts of another session": (
        lambda own, other: {**own, "state.json": other["state.json"]},
        CheckpointCorrupt,
    ),
    "a part that is missing": (
        lambda own, other: {part: data for part, data in own.items() if part != "state.json"},
        CheckpointCorrupt,
    ),
    "parts that are said to be enormous": (lambda own, other: enormous(own), CheckpointError),
    "a newer schema": (lambda own, other: said(own, schema_version="7.0"), SchemaUnsupported),
}


def test_a_damaged_checkpoint_is_refused_by_its_path_and_put_back_it_opens(store: str) -> None:
    path = newest(store)
    own, other = parts_of(store, path), parts_of(store, newest(store, "other"))
    stage = json.loads(own["meta.json"])["stage"]

    for what, (damage, error) in DAMAGES.items():
        plant(store, path, damage(own, other), f"planted{len(what)}" if "missing" in what else stage)
        with pytest.raises(error) as refused:
            CheckpointManager.resume_from_checkpoint(path, store=store)
        assert path in str(refused.value), what
        assert refused.value.hint, what

    plant(store, path, own, stage)
    assert CheckpointManager.resume_from_checkpoint(path, store=store)[1].steps == 3


def test_a_session_passes_over_it_says_so_and_comes_to_its_result(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = newest(store)
    own = parts_of(store, path)
    plant(store, path, {**own, "pkl": flipped(own["pkl"])}, json.loads(own["meta.json"])["stage"])

    with caplog.at_level(logging.WARNING):
        result = counting(store).execute(max_steps=9)

    assert result == 6
    assert path in caplog.text


def test_where_none_verifies_nothing_begins_anew(store: str) -> None:
    for metadata in CheckpointManager.list_checkpoints("s", store=store):
        own = parts_of(store, metadata.path)
        stage = json.loads(own["meta.json"])["stage"]
        plant(store, metadata.path, {**own, "state.json": flipped(own["state.json"])}, stage)

    with pytest.raises(NoGoodCheckpoint):
        counting(store).execute(max_steps=9)


def test_a_foreign_key_opens_nothing_and_both_ways_on_are_named(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = newest(store)
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())

    with pytest.raises(UnknownKey) as refused:
        CheckpointManager.resume_from_checkpoint(path, store=store)

    assert "GRAFLOW_CKPT_KEY" in refused.value.hint
    assert "trust" in refused.value.hint


def test_what_cannot_be_kept_or_named_is_refused_before_the_store_is_asked(store: str) -> None:
    context = counting(store, "t").execution_context
    before = {metadata.path for metadata in CheckpointManager.list_checkpoints(store=store)}

    with pytest.raises(NotStorable, match=r"metadata\['when'\]"):
        context.checkpoint(metadata={"when": object()})
    with pytest.raises(CheckpointError):
        CheckpointManager.resume_from_checkpoint(f"{open_store(store).folder}/..", store=store)
    for session in ("a/b", "..", "", "x" * 65, "a b"):
        with pytest.raises(BadSessionId):
            open_store(store).acquire(session)

    assert {metadata.path for metadata in CheckpointManager.list_checkpoints(store=store)} == before


def test_a_second_owner_is_refused_by_the_name_of_the_first(store: str) -> None:
    lease = open_store(store).acquire("s")

    with pytest.raises(SessionBusy) as busy:
        counting(store).execute(max_steps=9)

    assert busy.value.ids["owner"]
    lease.release()
    assert counting(store).execute(max_steps=9) == 6
