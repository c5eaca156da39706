"""Which store and which keys a path in Redis means."""

from __future__ import annotations

import pytest

from graflow_ckpt.core.errors import BadAddress, CheckpointError
from graflow_ckpt.stores.names import base_of, path_of
from graflow_ckpt.stores.redis_names import Keys, divided, folder_of, split, target_of

ENVIRONMENT = {"GRAFLOW_CKPT_REDIS_URL": "redis://:p@env:9/1"}
OWN = "session_s-1_step_3_1700000000-7"


@pytest.mark.parametrize(
    ("path", "store", "name"),
    [
        ("redis://h:1/2/best", "redis://h:1/2", "best"),
        ("redis://h:1/2/best.pkl", "redis://h:1/2", "best"),
        ("redis://h:1/2/best.meta.json", "redis://h:1/2", "best"),
        ("redis://u:p@h:1/2/best", "redis://u:p@h:1/2", "best"),
        ("redis://u@h/best", "redis://u@h", "best"),
        ("redis://h:1/best", "redis://h:1", "best"),
        ("redis://h:1/2/7", "redis://h:1/2", "7"),
        ("redis://h:1/2", "redis://h:1/2", ""),
        ("redis://h:1/2/best?socket_timeout=3", "redis://h:1/2?socket_timeout=3", "best"),
        ("redis+sentinel://a,b/main/2/best", "redis+sentinel://a,b/main/2", "best"),
        ("redis+sentinel://a,b/main/best", "redis+sentinel://a,b/main", "best"),
        ("redis+sentinel://a,b/main", "redis+sentinel://a,b/main", ""),
        ("redis://best", "redis://:p@env:9/1", "best"),
        ("redis://session_123.pkl", "redis://:p@env:9/1", "session_123"),
        ("redis://*", "redis://:p@env:9/1", "*"),
        ("redis://", "redis://:p@env:9/1", ""),
    ],
)
def test_a_path_is_a_store_and_a_name(path: str, store: str, name: str) -> None:
    assert split(path, ENVIRONMENT) == (store, name)


def test_a_name_alone_leads_nowhere_without_a_server() -> None:
    assert split("redis://best", {}) == ("", "best")


def test_a_store_may_be_named_by_its_host_alone() -> None:
    assert divided("redis://localhost") == ("redis://localhost", "")


def test_a_name_with_slashes_is_refused_without_showing_a_password() -> None:
    with pytest.raises(CheckpointError, match=r"redis://h:1/0/runs/best") as refused:
        split("redis://u:hunter2@h:1/0/runs/best")

    assert "hunter2" not in str(refused.value)


def test_a_unix_socket_cannot_be_a_store() -> None:
    with pytest.raises(BadAddress, match="no place for a name"):
        folder_of("unix:///run/redis.sock")


def test_a_sessions_own_checkpoints_are_in_its_slot_and_all_others_in_one() -> None:
    own, other = target_of(OWN), target_of("best")

    assert (own.session, other.session) == ("s-1", None)
    assert own.keys.fence("s-1") == "graflow:ck:{s-1}:lease"
    assert other.keys.fence("s-1") == "graflow:ck:{@}:fence:s-1"
    assert own.keys.chunks("n", "pkl") == "graflow:ck:{s-1}:chunk:n:pkl:"
    assert own.keys.chunks("n", "pkl").startswith(own.keys.chunks())
    assert Keys("s").segment(3, 17) == "graflow:ck:{s}:journal:3:17"


def test_a_checkpoint_is_listed_as_it_was_named() -> None:
    assert path_of("redis://h:1/0", OWN) == f"redis://h:1/0/{OWN}.pkl"
    assert path_of("redis://h:1/0", "best") == "redis://h:1/0/best"
    assert base_of(f"{OWN}.pkl") == OWN
