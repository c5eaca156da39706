"""Which of our errors a complaint of the server or of redis-py becomes."""

from __future__ import annotations

import pytest
import redis
from redis.connection import DefaultParser
from redis.sentinel import MasterNotFoundError

from graflow_ckpt.core.errors import (
    KeyTaken,
    ServerError,
    ServerFull,
    ServerGone,
    ServerReadOnly,
    ServerRefuses,
)
from graflow_ckpt.links.complaints import code_of, in_our_words, taken, translated


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("WRONGPASS invalid username-password pair or user is disabled.", ServerRefuses),
        ("NOAUTH Authentication required.", ServerRefuses),
        ("ERR invalid password", ServerRefuses),
        ("NOPERM User u has no permissions to run the 'evalsha' command", ServerRefuses),
        ("DENIED Redis is running in protected mode", ServerRefuses),
        ("READONLY You can't write against a read only replica.", ServerReadOnly),
        (
            "READONLY You can't write against a read only replica. script: 5ca, on @user_script:1.",
            ServerReadOnly,
        ),
        (
            "ERR Error running script (call to f_5ca): @user_script:1: -READONLY You can't write",
            ServerReadOnly,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", ServerFull),
        ("ERR Error running script (call to f_5ca): @user_script:1: -OOM command not allowed", ServerFull),
        ("MISCONF Redis is configured to save RDB snapshots, but it is unable to persist", ServerFull),
        ("LOADING Redis is loading the dataset in memory", ServerGone),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", ServerGone),
        ("NOREPLICAS Not enough good replicas to write.", ServerGone),
        ("MOVED 12182 127.0.0.1:7001", ServerRefuses),
        ("ASK 12182 127.0.0.1:7001", ServerRefuses),
        ("CLUSTERDOWN The cluster is down", ServerRefuses),
        ("CROSSSLOT Keys in request don't hash to the same slot", ServerRefuses),
        ("MASTERDOWN Link with MASTER is down", ServerGone),
        ("ERR max number of clients reached", ServerGone),
        ("ERR user_script:1: attempt to index a nil value script: 5ca", ServerError),
        ("OURS something that a script of ours says", ServerError),
    ],
)
def test_each_complaint_has_its_kind(reply: str, kind: type[ServerError]) -> None:
    error = DefaultParser.parse_error(reply)

    said = in_our_words(error, "redis://h:1/0")

    assert type(said) is kind
    assert said.address == "redis://h:1/0"
    assert str(said).startswith("redis://h:1/0 ")


def test_an_error_within_a_pipeline_keeps_its_word(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    client.set("text", "x")

    with pytest.raises(redis.ResponseError) as error:
        client.pipeline(transaction=False).hget("text", "f").execute()

    assert code_of(error.value) == "WRONGTYPE"
    client.close()


def test_an_error_of_a_script_keeps_its_word() -> None:
    said = in_our_words(DefaultParser.parse_error("OURS went wrong"), "a")

    assert (said.code, said.text) == ("OURS", "OURS went wrong")


@pytest.mark.parametrize(
    "error",
    [redis.ConnectionError("Error 111 connecting"), redis.TimeoutError("Timeout reading from socket")],
)
def test_what_may_pass_is_a_lost_connection_of_python_too(error: Exception) -> None:
    with pytest.raises(ConnectionError), translated("redis://h:1/0"):
        raise error


def test_what_sentinels_clients_show_of_themselves_is_not_repeated() -> None:
    said = in_our_words(
        MasterNotFoundError("No master found: <Redis(password=hunter2)>"), "redis+sentinel://h"
    )

    assert isinstance(said, ServerGone)
    assert "hunter2" not in str(said)


def test_something_that_is_no_redis_is_told_as_such() -> None:
    with pytest.raises(ServerError, match="does not speak the protocol"), translated("redis://h:80/0"):
        raise redis.InvalidResponse("Protocol Error: b'HTTP/1.1 400 Bad Request'")


def test_a_key_of_another_type_is_named_with_what_it_is() -> None:
    found = {b"g:h": b"string", b"g:q": b"zset", b"g:t": b"none", b"g:x": b"list"}

    error = taken("redis://h:1/0", list(found), ["hash", "zset", "hash"], found.__getitem__)

    assert type(error) is KeyTaken
    assert error.keys == {"g:h": "string", "g:x": "list"}
    assert "g:h is a string, not a hash, g:x is a list" in str(error)
    assert "another database" in error.hint
