"""Connecting: the command line as a client of a fleet, and the sessions that it finds there.

Who only looks on or steers needs no key: nothing that they send or read is sealed. What does need one
says so before anything is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from graflow_ckpt.checkpoint.keys import Keyring, uses_local_key
from graflow_ckpt.core.errors import GraflowError, NoSession, PackageMissing
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.interfaces.cli.configuration import configured, with_fleet

if TYPE_CHECKING:
    from graflow_ckpt.fleet.client import Client
    from graflow_ckpt.fleet.handle import Handle
    from graflow_ckpt.interfaces.settings import Resolved

CLOSEST = 3  # ids that are offered to somebody who has mistyped one
_MOMENT = 0.5  # seconds that a shell is made to wait for a server
_MANY = 200  # ids that a shell is offered


@contextmanager
def needed() -> Iterator[None]:
    """Around an import: a missing package is named together with what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "rq", "pydantic"):
            raise
        raise PackageMissing(
            f"A fleet needs the package {error.name!r}, which is not installed.",
            hint="Install it with: pip install 'graflow-ckpt[fleet]'.",
            extra="fleet",
        ) from error


def connect(resolved: Resolved, *, key: bool = False, timeout: float = 5.0) -> Client:
    """A client of the fleet that was named; `key`: something is going to be sealed."""
    with needed():
        from graflow_ckpt.fleet.client import Client
        from graflow_ckpt.links.redis import open_link
    assert resolved.url is not None
    keyring = Keyring.load(local=False) if key or not uses_local_key() else None
    link = open_link(resolved.url, timeout=timeout)
    rq = resolved.rq_url
    return Client(link, open_link(rq, timeout=timeout) if rq else None, keyring)


def client_of(ctx: click.Context, *, key: bool = False) -> Client:
    """Of what the command line and its surroundings say."""
    return connect(with_fleet(ctx), key=key)


def some_sessions(ctx: click.Context) -> list[str]:
    """For the completion of a shell: in a moment or not at all."""
    try:
        if not configured(ctx):
            return []
        client = connect(with_fleet(ctx), timeout=_MOMENT)
        return client.sessions()[:_MANY]
    except GraflowError:
        return []


def session_at(client: Client, session: str) -> Handle:
    """A session that is there; who has mistyped it is told what comes near."""
    handle = client.session(check_session_id(session))
    try:
        handle.status()
    except NoSession as error:
        raise unknown(client, session) from error
    return handle


def unknown(client: Client, session: str) -> NoSession:
    from difflib import get_close_matches

    near = get_close_matches(session, client.sessions(), CLOSEST)
    meant = f"Is {' or '.join(near)} meant? " if near else ""
    return NoSession(
        f"There is no session {session} at {client.link.address}.",
        hint=f"{meant}It may have expired or been purged; graflow-ckpt sessions lists what there is.",
        session=session,
        address=client.link.address,
    )
