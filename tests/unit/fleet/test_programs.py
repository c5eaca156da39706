"""How the program of a session reaches whoever runs it, on a real server."""

from __future__ import annotations

from typing import Any

from graflow_ckpt import task, workflow
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.programs import Programs
from graflow_ckpt.sessions.layout import keys_of


@task
def needs(rows: int) -> int:
    return rows


def test_a_parameter_may_be_filled_by_an_input_of_the_session(client: Client) -> None:
    flow = workflow("flow").add(needs)

    client.submit(flow.graph, flow.settings, ("needs",), {"rows": 3}, Terms("s"))

    redis: Any = client.link.client
    digest = redis.hget(f"{keys_of('s')}h", "code").decode()
    loaded = Programs(client.link, client.keyring).load(digest, ("needs",))
    assert loaded.parcel.given == ("rows",)
    assert list(loaded.bindings) == ["needs"]
