"""The door of a fleet for front ends: a graph, a call or many calls become a session.

Fleet   what `graflow_ckpt.connect(url)` gives: sessions by their ids, and somewhere to submit to
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Protocol

from blake3 import blake3

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import BadAddress, GraflowError, GraphError
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.bind import signature
from graflow_ckpt.fleet.accepting import Existing, Terms, call_of
from graflow_ckpt.fleet.client import Client, client_at
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.links.redis import examine

__all__ = ["Existing", "Fleet", "Terms", "at", "connect", "submit_call", "submit_calls", "terms_of"]

log = logging.getLogger("graflow_ckpt.fleet")


class Submits(Protocol):
    """A workflow, as a fleet sees it."""

    def submit(self, url: Any, /, *args: Any, **options: Any) -> Handle: ...


class Fleet:
    """Workers and sessions behind one address."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __repr__(self) -> str:
        return f"<fleet at {self.address}>"

    @property
    def address(self) -> str:
        """The address of the fleet, without a password."""
        return self.client.link.address

    def session(self, session: str) -> Handle:
        """Return a session by its id, whichever client submitted it; raise NoSession if there is none."""
        handle = self.client.session(session)
        handle.status()
        return handle

    def sessions(self) -> list[str]:
        """Return the ids of all that are kept, the newest first."""
        return self.client.sessions()

    # Any: what a task or a workflow is called with.
    def submit(self, what: Task | Submits, *args: Any, **options: Any) -> Handle:
        """Submit a workflow with the arguments of its `submit`, or a task with those of the call."""
        found: Handle
        if isinstance(what, Task):
            found = what.submit(*args, url=self, **options)  # type: ignore[attr-defined]  # decorated
        else:
            found = what.submit(self, *args, **options)
        return found

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


Where = str | Fleet | None
"""An address, a fleet, or None for what GRAFLOW_CKPT_REDIS_URL names."""


def connect(url: str | None = None) -> Fleet:
    """Connect to the fleet of an address, or of the environment."""
    return Fleet(at(url))


def at(where: Where) -> Client:
    """Return the client of a fleet."""
    if isinstance(where, Fleet):
        return where.client
    found = where or os.environ.get("GRAFLOW_CKPT_REDIS_URL", "")
    if not found:
        raise BadAddress(
            "There is no fleet to submit to.", hint='Give url="redis://…", or set GRAFLOW_CKPT_REDIS_URL.'
        )
    return client_at(found, os.environ.get("GRAFLOW_CKPT_RQ_URL") or None, _warn)


def _warn(client: Client) -> None:
    """Warn of a server that loses sessions by its nature; the workers say more when they start."""
    try:
        found = examine(client.link)
    except GraflowError:  # whatever it is, the next request reports it
        return
    for finding in found:
        if finding.level == "error" or "maxmemory-policy" in finding.what:
            log.warning("%s: %s %s", client.link.address, finding.what, finding.hint)


# --- submitting: Any, here and below, for arguments are whatever the user passes -----------


def terms_of(session: str | None, **options: Any) -> Terms:
    """Return the terms of those options that were given."""
    return Terms(session, **{name: value for name, value in options.items() if value is not None})


def refuse_clash(task: Task, args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse a keyword that the body has, too: which of them is meant must not be guessed."""
    for name in signature(task.func)[0][len(args) :]:
        if options.get(name) is not None:
            raise TypeError(
                f"{task.name}.submit({name}=…): {task.name} has a parameter {name!r}, and so has submit(). "
                f"Give the arguments apart: {task.name}.submit_call(args, kwargs, {name}=…)."
            )


def _terms_of(what: str, task: Task, key: str | None, options: Mapping[str, Any]) -> Terms:
    """Return the terms of calls; raise GraphError for an option that there is not."""
    known = [field.name for field in fields(Terms) if field.name != "session"] + ["key", "url"]
    for name in options.keys() - known:
        near = get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(sorted(known))}."
        if name in ("session", "session_id"):
            hint = "Give key=...: calls under the same key are the same session, whose id is handle.session."
        raise GraphError(f"{task.name}.{what}() has no option {name!r}.", hint=hint, option=name)
    return terms_of(_session(task, key), **options)


def submit_call(
    task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], url: Where, key: str | None, **options: Any
) -> Handle:
    terms = _terms_of("submit_call", task, key, options)
    return at(url).submit_calls(task, None, terms, (args, kwargs))


def submit_calls(task: Task, calls: Iterable[Any], url: Where, key: str | None, **options: Any) -> Handle:
    terms = _terms_of("submit_many", task, key, options)
    return at(url).submit_calls(task, map(call_of, calls), terms)


def _session(task: Task, key: str | None) -> str | None:
    """Return the session of a task under a key: the same for every client that submits it."""
    if key is None:
        return None
    arguments.kind("key", key, str, "a text")
    if not key:
        raise ValueError("key='' would make all calls one execution.")
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in f"{task.name}-{key}")
    return f"{readable[:40]}-{blake3(f'{task.name}/{key}'.encode()).hexdigest(6)}"
