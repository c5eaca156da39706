"""Metadata and schemas: what is refused, what is brought up to date, and what is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint import model
from graflow_ckpt.checkpoint.model import (
    CheckpointMetadata,
    Document,
    check_metadata,
    check_schema,
    now_iso,
    parse,
    supported,
    upgrade,
)
from graflow_ckpt.core.errors import CheckpointCorrupt, NotStorable, SchemaUnsupported


def metadata(**more: Any) -> CheckpointMetadata:
    made = CheckpointMetadata.create("chk_1", "s", 3, "a", {"queue": "memory"}, {"epoch": 2})
    for name, value in more.items():
        setattr(made, name, value)
    return made


# --- metadata --------------------------------------------------------------------------


def test_metadata_comes_back_from_its_document() -> None:
    made = metadata(path="x.pkl", sequence=4, epoch=2, argv=["a"], inputs={"k": "d"}, parent="chk_0")

    back = CheckpointMetadata.from_document("x.pkl", json.loads(json.dumps(made.document())))

    assert back == made
    assert "path" not in made.document()


def test_metadata_is_of_now_in_utc() -> None:
    assert now_iso().endswith("+00:00")
    assert metadata().created_at[:10] == now_iso()[:10]


def test_the_users_dict_is_not_the_one_that_is_kept() -> None:
    mine = {"epoch": 1}

    made = CheckpointMetadata.create("chk_1", "s", 3, "a", {}, mine)
    made.user_metadata["more"] = 1

    assert mine == {"epoch": 1}


def test_fields_that_this_version_does_not_know_are_left_alone() -> None:
    document = metadata().document() | {"seal": "x", "parts": {}, "later": 1}

    assert CheckpointMetadata.from_document("x.pkl", document).session_id == "s"


@pytest.mark.parametrize(
    "damage",
    [
        {"checkpoint_id": None, "drop": "backend"},
        {"steps": "3"},
        {"epoch": None},
        {"sequence": [1]},
        {"created_at": 5},
        {"session_id": None},
        {"session_id": "../../etc"},
    ],
)
def test_metadata_that_nobody_can_have_written_is_corrupt(damage: dict[str, Any]) -> None:
    document = metadata().document() | damage
    document.pop(damage.get("drop", ""), None)

    with pytest.raises(CheckpointCorrupt, match=r"x\.pkl is corrupted or uses an incompatible") as caught:
        CheckpointMetadata.from_document("x.pkl", document)

    assert caught.value.path == "x.pkl"


# --- the user's metadata ---------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_json_is_taken_and_left_as_it_is(given_metadata: dict[str, Any]) -> None:
    before = json.dumps(given_metadata)

    copy = check_metadata(given_metadata)

    assert json.dumps(given_metadata) == json.dumps(copy) == before


def test_what_is_kept_is_a_copy_all_the_way_down() -> None:
    mine = {"losses": [1]}

    copy = check_metadata(mine)
    mine["losses"].append(2)

    assert copy == {"losses": [1]}
    assert check_metadata(None) == {}


nested: list[Any] = []
nested.append(nested)
deep: list[Any] = []
for _ in range(100_000):
    deep = [deep]


@pytest.mark.parametrize(
    "value",
    [
        {1: "integer keys"},
        (1, 2),
        {3},
        b"bytes",
        object(),
        float("nan"),
        float("inf"),
        -float("inf"),
        [{"inside": float("inf")}],
        nested,
        deep,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_would_change_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(NotStorable, match=r"metadata\['loss'\] is a .*, which JSON cannot hold") as caught:
        check_metadata({"fine": 1, "loss": value})

    assert caught.value.path == "metadata['loss']"


# --- documents -------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"a": 1', b"[" * 200_000])
def test_what_is_no_json_is_a_corrupt_companion_by_name(raw: bytes) -> None:
    with pytest.raises(CheckpointCorrupt, match=r"x\.pkl is corrupted .*\.meta\.json is not valid JSON"):
        parse("x.pkl", raw, ".meta.json")


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"text"'])
def test_json_that_is_no_object_is_corrupt(raw: bytes) -> None:
    with pytest.raises(CheckpointCorrupt, match=r"\.state\.json is no JSON object"):
        parse("x.pkl", raw, ".state.json")


def test_a_document_is_what_stands_in_it() -> None:
    assert parse("x.pkl", b'{"a": [1]}', ".meta.json") == {"a": [1]}


# --- schemas ---------------------------------------------------------------------------


def test_a_newer_schema_is_refused_with_the_documented_text() -> None:
    with pytest.raises(ValueError, match=r"^Unsupported checkpoint schema version: 9\.9\.") as caught:
        check_schema("x.pkl", "9.9")

    error = caught.value
    assert isinstance(error, SchemaUnsupported)
    assert str(error) == (
        "Unsupported checkpoint schema version: 9.9. Supported: ['1.0']. "
        "Checkpoint schema version 9.9 is incompatible with current version 1.0. "
        "Migration required: upgrade graflow_ckpt to read x.pkl."
    )
    assert (error.version, error.path) == ("9.9", "x.pkl")


@pytest.mark.parametrize("version", [1.0, ["1.0"], {}, "1.0 "])
def test_what_is_no_schema_is_refused(version: object) -> None:
    with pytest.raises(SchemaUnsupported):
        check_schema("x.pkl", version)


def test_where_none_is_named_the_bytes_are_damaged() -> None:
    with pytest.raises(CheckpointCorrupt):
        check_schema("x.pkl", None)


def test_the_current_schema_is_not_touched() -> None:
    meta, state = {"schema_version": "1.0"}, {"schema_version": "1.0", "steps": 1}

    assert upgrade(meta, state) == (meta, state)


def test_older_schemas_are_brought_up_to_date_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_08(meta: Document, state: Document) -> tuple[Document, Document]:
        return meta, state | {"passed": state.pop("groups")}

    def from_09(meta: Document, state: Document) -> tuple[Document, Document]:
        return meta | {"epoch": 1}, state

    monkeypatch.setattr(model, "UPGRADES", {"0.8": ("0.9", from_08), "0.9": ("1.0", from_09)})
    old_meta, old_state = {"schema_version": "0.8"}, {"schema_version": "0.8", "groups": ["g"]}

    meta, state = upgrade(old_meta, old_state)

    assert supported() == ["0.8", "0.9", "1.0"]
    assert meta == {"schema_version": "1.0", "epoch": 1}
    assert state == {"schema_version": "1.0", "passed": ["g"]}
    assert (old_meta, old_state) == ({"schema_version": "0.8"}, {"schema_version": "0.8", "groups": ["g"]})
