"""The client of Google's buckets: made as its address and environment say, and its conditions hold.

Against a server that numbers generations as Google documents them (object_servers.GoogleServer); Google's own
was never asked. All tests of the object store run against it by `make test-google`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from graflow_ckpt.core.errors import BadAddress, Fenced, SessionBusy
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.drivers.objects.bucket import Bucket, client_for
from graflow_ckpt.stores.drivers.objects.names import place_of
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from tests.object_servers import GoogleServer
from tests.trios import listed, named, own_name, owning, path_of, put_own, read


@pytest.fixture(scope="module")
def server() -> Iterator[GoogleServer]:
    with GoogleServer() as google:
        yield google


@pytest.fixture
def url(server: GoogleServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "")  # taken back after the test
    return server.url


def test_what_is_written_under_another_generation_is_not_written_over(url: str) -> None:
    bucket = Bucket(place_of(url))

    first = bucket.create("k", b"1")
    assert first is not None
    assert bucket.create("k", b"2") is None
    second = bucket.swap("k", b"1", first)  # the same bytes, and another generation
    assert second is not None
    assert bucket.swap("k", b"4", first) is None

    found = bucket.get("k")
    assert found is not None
    assert (found.data, json.loads(found.tag)["version"]) == (b"1", json.loads(second)["version"])
    bucket.verify(again=True)
    assert [entry.key for entry in bucket.list("")] == ["k"]
    bucket.delete(["k"])
    assert bucket.get("k") is None


def test_a_trio_is_kept_under_an_epoch_and_its_former_owner_is_fenced(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, ObjectStore)

    with owning(store) as lease:
        put_own(store, lease, 1)
        with pytest.raises(SessionBusy):
            store.acquire("s")
        taken = store.acquire("s", take_over=True)
        with pytest.raises(Fenced):
            put_own(store, lease, 2)

    assert taken.epoch > lease.epoch
    assert read(store, path_of(store, own_name("s", 1))).stage
    assert listed(store, "s") == [named(own_name("s", 1))]
    taken.release()


def test_the_account_comes_from_the_environment_and_options_from_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = {"client_email": "me@x", "private_key": "hunter2", "private_key_id": "1", "disable_oauth": True}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))

    client = client_for(place_of("gcs://my-bucket/runs?skip_signature=true"), 0)

    assert client.config["bucket"] == "my-bucket"
    assert client.config["skip_signature"] in (True, "true")
    assert "hunter2" not in str(place_of("gcs://my-bucket/runs"))


def test_an_option_that_the_client_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(BadAddress, match="gs://my-bucket cannot be opened") as bad:
        client_for(place_of("gs://my-bucket?no_such_option=1"), 0)

    assert "settings in the environment" in bad.value.hint
