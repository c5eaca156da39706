"""The scripts: all are there, and a call that may be repeated is repeated for as long as patience lasts."""

from __future__ import annotations

import threading
import time
from importlib.resources import files

import pytest

from graflow_ckpt.core.errors import ServerError, ServerGone
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.stores import redis_scripts
from graflow_ckpt.stores.redis_scripts import Scripts, source
from tests.proxy import Proxy
from tests.servers import Server

NAMES = sorted(
    path.name.removesuffix(".lua") for path in (files("graflow_ckpt.stores") / "scripts").iterdir()
)


def test_each_script_says_what_it_takes_and_its_keys_have_types() -> None:
    assert sorted(redis_scripts._TYPES) == NAMES
    for name in NAMES:
        head = source(name)
        keys = head.partition("-- KEYS")[2].partition("-- ARGV")[0].split(";")
        assert head.startswith("-- ")
        assert len(redis_scripts._TYPES[name]) == len([key for key in keys if "then each" not in key]), name
        for kind, key in zip(redis_scripts._TYPES[name], keys, strict=False):
            assert f": {kind}" in key, f"{name}: {key} is to be a {kind}"


@pytest.mark.parametrize("name", NAMES)
def test_each_script_compiles(name: str, redis_server: Server) -> None:
    assert redis_server.ask("SCRIPT", "LOAD", source(name))


def test_a_server_that_comes_back_in_time_was_never_away(redis_server: Server, redis_url: str) -> None:
    with Proxy(redis_server) as proxy:
        scripts = Scripts(open_link(proxy.url))
        proxy.refuse()
        back = threading.Timer(0.2, proxy.resume)
        back.start()

        assert scripts.sure("release", ["graflow:ck:{s}:lease"], [1]) == 1
        back.join()


def test_patience_ends(redis_server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_scripts, "PATIENCE", 0.2)
    with Proxy(redis_server) as proxy:
        scripts = Scripts(open_link(proxy.url))
        proxy.refuse()
        began = time.monotonic()

        with pytest.raises(ServerGone):
            scripts.sure("release", ["graflow:ck:{s}:lease"], [1])

        assert time.monotonic() - began >= 0.2


def test_what_will_not_pass_is_not_repeated(redis_server: Server, redis_url: str) -> None:
    scripts = Scripts(open_link(redis_url))
    redis_server.ask("SET", "graflow:ck:{s}:lease", "a string")

    with pytest.raises(ServerError, match="is a string, not a hash"):
        scripts.sure("release", ["graflow:ck:{s}:lease"], [1])
