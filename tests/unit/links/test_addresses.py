"""Addresses: what can be read, and that nothing secret is shown."""

from __future__ import annotations

import pytest

from graflow_ckpt.core.errors import BadAddress
from graflow_ckpt.links.addresses import masked, options_of, parse


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("REDIS://h:7/3", "redis://h:7/3"),
        ("redis://", "redis://localhost:6379/0"),
        ("redis://u:hunter2@h:7", "redis://h:7/0"),
        ("redis://:hunter2@h:7/?db=2", "redis://h:7/2"),
        ("redis://h:7/2?password=hunter2", "redis://h:7/2"),
        ("redis://u:hun%40ter%2F2@h:7", "redis://h:7/0"),
        ("redis://hunter2@h", "redis://h:6379/0"),
        ("rediss://[::1]:7/1?ssl_cert_reqs=none", "rediss://[::1]:7/1"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("unix://u:hunter2@/run/redis.sock?db=4", "unix:///run/redis.sock?db=4"),
        ("redis+sentinel://:hunter2@a,b:7/main/2", "redis+sentinel://a:26379,b:7/main/2"),
    ],
)
def test_an_address_is_shown_without_what_is_secret_and_reads_back(where: str, shown: str) -> None:
    address = parse(where)

    assert str(address) == shown
    assert str(parse(shown)) == shown
    assert "hun" not in repr(address)


@pytest.mark.parametrize(
    ("where", "user", "password"),
    [
        ("redis://u:p%40%2F%3Aw@h", "u", "p@/:w"),
        ("redis://:a:b@h", None, "a:b"),
        ("redis://u@h", "u", None),
        ("redis://h?username=u&password=p%2B", "u", "p+"),
        ("unix://:p@/s", None, "p"),
        ("redis://h", None, None),
    ],
)
def test_credentials_are_decoded(where: str, user: str | None, password: str | None) -> None:
    found = options_of(parse(where).secrets)

    assert (found.get("username"), found.get("password")) == (user, password)


@pytest.mark.parametrize(
    "where",
    [
        "redis://u:hunter/2@h",
        "redis://u:hunter?2@h",
        "redis://u:hunter#2@h",
        "redis://u:hunter@2@h",
        "redis://:hunter2",
        "redis://h:hunter2/0",
        "redis://h:99999",
        "redis://h/hunter2",
        "redis://h/0/hunter2",
        "redis+sentinel://:hunter2@h:1",
        "unix://hunter2",
        "unix://hunter2/run/redis.sock",
        "http://u:hunter2@h",
        "hunter2@h:6379",
    ],
)
def test_what_cannot_be_read_is_refused_without_showing_a_password(where: str) -> None:
    with pytest.raises(BadAddress) as refused:
        parse(where)

    assert "hunter" not in f"{refused.value} {refused.value.ids} {refused.value.__cause__!r}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://u:p@h:1/0/best", "redis://h:1/0/best"),
        ("redis://u:p@q@h:1", "redis://h:1"),
        ("redis://h:1/0?password=p", "redis://h:1/0"),
        ("checkpoints/a.pkl", "checkpoints/a.pkl"),
        ("file:///srv/a.pkl", "file:///srv/a.pkl"),
    ],
)
def test_any_text_can_be_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_credentials_that_have_opened_a_server_open_it_again_by_what_was_stored() -> None:
    parse("redis://u:p@h:7/0").remember()

    assert parse("redis://h:7/5").with_credentials({}).secrets == {"username": "u", "password": "p"}
    assert parse("redis://u:other@h:7").with_credentials({}).secrets["password"] == "other"
    assert parse("redis://h:8").with_credentials({}).secrets == {}


def test_the_environment_lends_its_credentials_to_its_own_server_only() -> None:
    environment = {"GRAFLOW_CKPT_REDIS_URL": "redis://u:p@h:7/0?socket_timeout=3"}

    found = parse("redis://h:7/2").with_credentials(environment)

    assert (found.secrets["password"], found.options["socket_timeout"], found.db) == ("p", "3", 2)
    assert parse("redis://other:7").with_credentials(environment).secrets == {}
