"""Scripts through the pool: loaded where they are not known, sent once, and to the right node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graflow_ckpt.core.errors import KeyTaken, ServerError, ServerGone
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.links.wire import Step, together
from tests.proxy import Proxy
from tests.servers import Server

COUNT = "return redis.call('incr', KEYS[1])"


def test_a_script_is_loaded_where_it_is_not_known(redis_url: str) -> None:
    link = open_link(redis_url)
    script = link.script(COUNT)

    link.client.script_flush()
    assert script(["n"]) == 1
    link.client.script_flush()
    assert script([b"n"]) == 2
    assert script.sha in repr(script) or script.sha[:8] in repr(script)
    link.close()


def test_a_script_that_is_not_known_travels_with_its_call(redis_server: Server, redis_url: str) -> None:
    """Loaded first and called then, it could be forgotten in between, and the call would fail."""
    link = open_link(redis_url)
    script, wire = link.script(COUNT), link.connection()
    for call in (script, lambda keys: wire.call(script, keys)):
        link.client.script_flush()
        redis_server.ask("CONFIG", "RESETSTAT")

        assert call(["n"]) > 0

        stats = redis_server.ask("INFO", "commandstats")
        assert b"cmdstat_eval:calls=1," in stats
        assert b"cmdstat_script|load" not in stats
    wire.close()
    link.close()


def test_a_call_whose_reply_is_lost_is_sent_once(redis_server: Server, redis_url: str) -> None:
    with Proxy(redis_server) as proxy:
        link = open_link(proxy.url)
        script = link.script(COUNT)
        script(["n"])
        proxy.drop_next_reply(b"EVALSHA")

        with pytest.raises(ServerGone):
            script(["n"])

        assert redis_server.ask("GET", "n") == b"2"
        assert script(["n"]) == 3  # the pool opens another connection
        link.close()


def test_after_a_restart_the_next_call_finds_the_server(own_redis: Callable[..., Server]) -> None:
    server = own_redis()
    link = open_link(server.url)
    script = link.script("return 1")
    script([])

    server.restart()

    assert script([]) == 1  # the pool has seen that its connection was closed


def test_an_error_of_a_script_keeps_its_word(redis_url: str) -> None:
    link = open_link(redis_url)

    with pytest.raises(ServerError) as error:
        link.script("return redis.error_reply('OURS no')")([])

    assert error.value.code == "OURS"
    link.close()


def test_steps_that_go_together_are_run_again_with_a_script_that_was_not_known(redis_url: str) -> None:
    link = open_link(redis_url)
    script = link.script(COUNT)
    steps: list[Step] = [(None, (), ["SET", "x", b"1"]), (script, ["n"], ())]

    assert together(link.client, link.address, steps) == [True, 1]
    link.client.script_flush()
    assert together(link.client, link.address, [*steps, (script, ["n"], ())]) == [True, 2, 3]
    link.close()


def test_what_is_wrong_with_one_step_is_in_its_place_and_the_others_are_run(redis_url: str) -> None:
    link = open_link(redis_url)
    link.client.set("text", b"x")
    counted = link.script("return redis.call('hincrby', KEYS[1], 'n', 1)", ["hash"])
    steps: list[Step] = [
        (None, (), ["NOSUCH", "x"]),
        (counted, ["text"], ()),
        (link.script(COUNT), ["n"], ()),
    ]

    unknown, wrong, done = together(link.client, link.address, steps)

    assert isinstance(unknown, ServerError)
    assert isinstance(wrong, KeyTaken)
    assert "is a string, not a hash" in str(wrong)
    assert done >= 1  # twice if one of the scripts was not known
    link.close()


def test_steps_whose_reply_is_lost_say_so(redis_server: Server, redis_url: str) -> None:
    with Proxy(redis_server) as proxy:
        link = open_link(proxy.url)
        script = link.script(COUNT)
        script(["n"])
        proxy.drop_next_reply(b"EVALSHA")

        with pytest.raises(ServerGone):
            together(link.client, link.address, [(None, (), ["PING"]), (script, ["n"], ())])

        assert redis_server.ask("GET", "n") == b"2"
        link.close()
