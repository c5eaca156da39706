"""Connecting: the command line as a client of a fleet, and the sessions that it finds and shows there.

A user who only reads or steers needs no key: nothing that they send or read is sealed. What does need
one says so before anything is done.
"""

from __future__ import annotations

from dataclasses import asdict
from difflib import get_close_matches
from itertools import islice

from graflow_ckpt.cli import options, words
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.config.settings import FleetSettings
from graflow_ckpt.core.errors import GraflowError, NoSession
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.status import Status, read_all
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.stores.around.keys import Keyring, uses_local_key

CLOSEST = 3  # ids that are offered where one was mistyped
_MOMENT = 0.5  # seconds that a shell is made to wait for a server
_MANY = 200  # ids that a shell is offered


def connect(settings: FleetSettings, *, key: bool = False, timeout: float = 5.0) -> Client:
    """Connect to the fleet that was named; `key`: something is going to be sealed."""
    keyring = Keyring.load(local=False) if key or not uses_local_key() else None
    link = open_link(settings.redis_url, timeout=timeout)
    return Client(link, open_link(settings.rq_url, timeout=timeout) if settings.rq_url else None, keyring)


def client_of(manner: Manner, *, key: bool = False) -> Client:
    """Return the client of the fleet that command line and environment name."""
    return connect(options.with_fleet(manner), key=key)


def some_sessions(manner: Manner) -> list[str]:
    """Return sessions for the completion of a shell: in a moment or not at all."""
    try:
        return connect(options.with_fleet(manner), timeout=_MOMENT).sessions()[:_MANY]
    except GraflowError:
        return []


def session_at(client: Client, session: str) -> Handle:
    """Return a session that is there; the error for a mistyped one names the nearest."""
    handle = client.session(check_session_id(session))
    try:
        handle.status()
    except NoSession as error:
        raise unknown(client, session) from error
    return handle


def handle_of(manner: Manner, session: str) -> Handle:
    """Return the same, at the fleet that is meant."""
    return session_at(client_of(manner), session)


def unknown(client: Client, session: str) -> NoSession:
    near = get_close_matches(session, client.sessions(), CLOSEST)
    meant = f"Is {' or '.join(near)} meant? " if near else ""
    return NoSession(
        f"There is no session {session} at {client.link.address}.",
        hint=f"{meant}It may have expired or been purged; graflow-ckpt sessions lists what there is.",
        session=session,
        address=client.link.address,
    )


FINISHED = frozenset({"completed", "cancelled"})
"""How sessions end that nothing goes on with."""

_REASON = 60  # characters of it in a table


def rows_of(client: Client, *, workflow: str | None, unfinished: bool, limit: int | None) -> list[Status]:
    """Return the newest first. One whose time is over may still be in the list, and is left out."""
    found = (
        row
        for row in read_all(client.link, client.sessions())
        if workflow in (None, row.workflow) and not (unfinished and row.status in FINISHED)
    )
    return list(islice(found, limit))


def document(row: Status, at: str) -> Document:
    return {
        **asdict(row),
        "queues": dict(row.queues),
        "slices": dict(row.slices),
        "pending": row.ready + row.delayed + row.running,
        "age": words.seconds_ago(row.created),
        "at": at,
    }


def shortened(text: str) -> str:
    return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"
