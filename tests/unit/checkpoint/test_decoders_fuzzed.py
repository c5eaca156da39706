"""Every decoder of stored bytes gives a value or a CheckpointError, whatever the bytes are."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from graflow_ckpt.checkpoint import journal, model, parcel
from graflow_ckpt.checkpoint.codec import decode, encode
from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError
from graflow_ckpt.stores.keys import Keyring
from tests.golden.make import VALUES

ENCODED = [encode(value) for value in VALUES.values()]
RING = Keyring({"golden": bytes(32)})


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Bytes of which some were replaced, taken away or doubled."""
    at = st.integers(0, len(whole))
    return st.builds(lambda a, b, new: whole[:a] + new + whole[b:], at, at, st.binary(max_size=6))


def ext(code: int, payload: bytes) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(code, payload)))


PAYLOADS = st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda text: text.encode()))


@given(st.one_of(st.binary(max_size=80), st.sampled_from(ENCODED).flatmap(damaged)))
def test_plain_values(data: bytes) -> None:
    with suppress(CheckpointError):
        decode(data)


@given(st.integers(0, 20), PAYLOADS)
@example(13, b"\x05f4,(3"[:6])
@example(13, b"\x04(1,)")
@example(7, bytes(9) + b"z.")
@example(7, bytes(9) + b"zEurope")
def test_extension_types(code: int, payload: bytes) -> None:
    with suppress(CheckpointError):
        decode(ext(code, payload))


@pytest.mark.parametrize("data", [ext(13, b"\x03,,,"), ext(13, b"\x04f4,("), ext(7, bytes(9) + b"zEurope")])
def test_a_dtype_or_a_zone_that_is_none_is_damage(data: bytes) -> None:
    with pytest.raises(CheckpointCorrupt):
        decode(data)


@given(st.one_of(st.binary(max_size=60), damaged(journal.pack(3, 1.0, [("put", "a", b"\x01", -1)]))))
def test_records_of_a_journal(payload: bytes) -> None:
    with suppress(CheckpointError):
        journal.unpack(payload)


@given(st.binary(max_size=200))
def test_segments_of_a_journal(raw: bytes) -> None:
    with suppress(CheckpointError):
        list(journal.read(RING, "s", 1, 0, raw))
    assert journal.key_of(raw) is None or journal.is_later(raw) in (True, False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(["schema_version", "needs", "session_id", "epoch", "parts"]), JSON))
def test_metas(document: dict[str, Any]) -> None:
    with suppress(CheckpointError):
        model.CheckpointMetadata.from_document("p", model.parse("p", json.dumps(document).encode(), "meta"))
    assert isinstance(model.lacking(document), tuple)


@given(st.binary(max_size=60))
def test_metas_that_are_no_json(raw: bytes) -> None:
    with suppress(CheckpointError):
        model.parse("p", raw, "meta")


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=30).map(lambda rest: b"2\n{}" + rest)))
def test_programs(packed: bytes) -> None:
    with suppress(CheckpointError):
        parcel.unpack(packed)


@given(st.binary(max_size=60).map(lambda rest: b"\xc1" + rest))
def test_sealed_cells(data: bytes) -> None:
    with suppress(CheckpointError):
        SealedCells("s", RING).unpack("name", data)


@given(st.one_of(st.binary(max_size=60), damaged(b"one:" + b"0" * 64)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_key_files(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_bytes(raw)

    with suppress(CheckpointError):
        Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(file)})
