"""Scripts of the Redis store that keep contents badly, each convicted by the test that is named for it.

In each one line is another one; the rest is sound, and with the line as it is the same test passes.
"""

from __future__ import annotations

from functools import partial

import pytest

from graflow_ckpt.stores import redis_scripts
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.testing import ContentContract, Opener
from tests.conformance.test_broken import CONVICTION, parameters_of
from tests.servers import Server

CASES = {
    "what goes is not asked who else holds it": (
        "free",
        "if redis.call('EXISTS', root .. 'by:' .. nonce) == 1 then",
        "if false then",
        "test_what_two_hold_stays_until_both_are_deleted",
    ),
    "nobody lets go of what was deleted": (
        "delete",
        "redis.call('SADD', KEYS[4], record.holds.nonce)",
        "redis.call('EXISTS', KEYS[4])",
        "test_what_two_hold_stays_until_both_are_deleted",
    ),
    "nobody lets go of what was replaced": (
        "commit",
        "redis.call('SADD', KEYS[7], holds.nonce)",
        "redis.call('EXISTS', KEYS[7])",
        "test_what_is_replaced_lets_go_of_what_the_new_one_does_not_hold",
    ),
    "a commit does not look whether all is there": (
        "commit",
        "if #missing > 0 then",
        "if false then",
        "test_a_meta_that_names_what_is_not_there_is_not_committed",
    ),
    "a meta put alone holds nothing": (
        "commit",
        "holds = first > 9 and {nonce = nonce, stage = stage} or nil",
        "holds = first > 9 and #ARGV >= first and {nonce = nonce, stage = stage} or nil",
        "test_a_meta_put_alone_keeps_the_contents_of_its_stage",
    ),
    "a save looks and does not hold": (
        "pin",
        "redis.call('SADD', root .. 'by:' .. nonce, save)",
        "redis.call('EXISTS', root)",
        "test_what_a_save_has_found_stays_for_it_whoever_deletes_it",
    ),
    "what was found to be damaged is held again": (
        "find",
        "redis.call('HDEL', KEYS[2], ARGV[2])",
        "redis.call('EXISTS', KEYS[2])",
        "test_what_is_damaged_is_not_held_again_and_its_checkpoint_keeps_it",
    ),
}


def convict(server: Server, opener: Opener, test: str) -> None:
    method = getattr(ContentContract(), test)
    for arguments in parameters_of(method):
        server.ask("FLUSHALL")
        method(opener, **arguments)


@pytest.mark.parametrize("broken", CASES)
def test_a_script_that_keeps_contents_badly_is_convicted(
    redis_server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    script, line, other, test = CASES[broken]
    sound = redis_scripts.source
    assert sound(script).count(line) == 1
    convict(redis_server, partial(RedisStore, redis_url), test)

    def source(name: str) -> str:
        return sound(name).replace(line, other) if name == script else sound(name)

    monkeypatch.setattr(redis_scripts, "source", source)
    with pytest.raises(CONVICTION):
        convict(redis_server, partial(RedisStore, redis_url), test)
