"""From addresses and paths to buckets and keys."""

from __future__ import annotations

import pytest

from graflow_ckpt.core.errors import BadAddress, CheckpointError
from graflow_ckpt.stores.objects_names import decoded, encoded, is_objects, place_of, split, target_of

OWN = "session_s_step_1_1700000000-1"


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("S3://bucket/a//b/", "s3://bucket/a/b"),
        ("gcs://my.bucket/x", "gs://my.bucket/x"),
        ("azure://container/x", "az://container/x"),
        ("s3://bucket/x?endpoint=http://h:1&region=eu", "s3://bucket/x"),
    ],
)
def test_an_address_is_shown_without_its_options(where: str, shown: str) -> None:
    assert str(place_of(where)) == shown
    assert "endpoint" not in repr(place_of(where))


def test_options_of_a_bucket_are_remembered_where_only_its_text_is_left() -> None:
    place_of("s3://remembered/x?endpoint=http://h:1").remember()

    assert place_of("s3://remembered/y").options == {"endpoint": "http://h:1"}
    assert place_of("s3://another/y").options == {}


@pytest.mark.parametrize(
    "where",
    [
        "s3://",
        "s3://hunter2:hunter2@bucket",
        "s3://bucket/../x",
        "s3://bucket?secret_access_key=hunter2",
        "s3://bucket?aws_access_key_id=hunter2",
        "az://container?sas_token=hunter2",
        "s3://bucket?session_token=hunter2",
        "s3:///hunter2",
        "http://bucket",
    ],
)
def test_what_is_no_address_or_holds_a_secret_is_refused_without_showing_it(where: str) -> None:
    with pytest.raises(BadAddress) as bad:
        place_of(where)

    assert "hunter2" not in f"{bad.value} {bad.value.ids}"


@pytest.mark.parametrize(
    ("path", "store", "base"),
    [
        ("s3://bucket/best", "s3://bucket", "best"),
        ("s3://bucket/a/b/best.pkl", "s3://bucket/a/b", "best"),
        ("s3://bucket/a/best.meta.json?region=eu", "s3://bucket/a?region=eu", "best"),
        ("s3://bucket", "s3://bucket", ""),
        ("s3://bucket/", "s3://bucket", ""),
    ],
)
def test_the_last_piece_of_a_path_is_the_name(path: str, store: str, base: str) -> None:
    assert split(path) == (store, base)


@pytest.mark.parametrize("name", ["best", "a b", "50%", "x=y", "#?*&+", "naïve ☃", "a\\b", "\udcff", "..."])
def test_every_name_has_a_key_of_its_own_and_comes_back_from_it(name: str) -> None:
    key = encoded(name)

    assert decoded(key) == name
    assert key.isascii()
    assert not set(key) & set("%#?*/\\ ")


def test_names_that_cannot_be_are_refused() -> None:
    for name in ("", ".", "..", "x" * 901, "☃" * 200):
        with pytest.raises(CheckpointError, match="cannot be the name"):
            target_of(name)


def test_the_own_names_of_a_session_belong_to_it() -> None:
    assert target_of(OWN).session == "s"
    assert target_of("best").session is None
    assert target_of(f"x{OWN}").session is None


def test_what_leads_to_a_bucket() -> None:
    assert all(is_objects(path) for path in ("s3://b/x", "GS://b/x", "az://c/x", "azure://c/x", "gcs://b/x"))
    assert not any(is_objects(path) for path in ("redis://h/x", "s3", "/s3/x", "file:///s3"))
