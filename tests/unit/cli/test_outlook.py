"""What is seen of a fleet at one look, and from one look to the next, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.interfaces.cli.outlook import Overview, Queue
from graflow_ckpt.links.redis import open_link
from tests.unit.fleet.played import Player, bag


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    client = Client(open_link(redis_url), keyring=Keyring({"test": b"k" * 32}))
    yield client
    client.close()


def step(player: Player) -> None:
    claim = player.claim()
    player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 0)])


def test_rates_are_the_steps_between_two_looks(client: Client) -> None:
    bag(client, "busy")
    bag(client, "still")
    player = Player(client, "busy")
    overview = Overview(client, 10)
    assert overview.look().rates == {}

    step(player)
    look = overview.look()

    assert look.rates["busy"] > 0
    assert look.rates["still"] == 0
    assert look.rate == look.rates["busy"]
    assert overview.look().rates["busy"] == 0
    player.close()


def test_those_that_do_most_come_first_and_only_so_many_are_shown(client: Client) -> None:
    for name in ("a", "b", "c"):
        bag(client, name)
    player = Player(client, "b")
    overview = Overview(client, 2)
    overview.look()

    step(player)
    look = overview.look()

    assert look.sessions[0].session == "b"
    assert (len(look.sessions), look.hidden) == (2, 1)
    player.close()


def test_queues_add_up_over_sessions_and_what_is_over_does_not_count(client: Client) -> None:
    bag(client, "one", 3)
    bag(client, "two", 2)
    bag(client, "three", 5)
    client.session("three").cancel()
    player = Player(client, "one")
    player.claim()

    look = Overview(client, 10).look()

    assert look.queues == [Queue("default", 4, 1, 2, 0)]
    assert look.document()["queues"][0]["ready"] == 4
    player.close()
