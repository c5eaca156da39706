"""Places: where checkpoints are kept when nobody has said where.

    GRAFLOW_CKPT_STORE                  a folder or a URL; wins over all of these
    WORKFLOW_CHECKPOINT_BACKEND         memory, local, sqlite, redis, postgres, s3, gcs or azure
    WORKFLOW_CHECKPOINT_DSN             its address; alone it says the backend, too
    USE_SQLITE_CHECKPOINTS              true, or a share (10%): so many of the new sessions of programs go
                                        to the user's database

Without any of them a program keeps its checkpoints in the folder `checkpoints`, and the command line in
that folder if there is one here, else in the user's database. A session that is known in one of
them stays there, whoever asks: none begins anew because a default has changed.

Not here: what a URL means (`open_store`), and what a workflow says of itself.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import backend_of, open_store
from graflow_ckpt.stores.sqlite_names import file_of, folder_of, own_file

log = logging.getLogger("graflow_ckpt.stores")

FOLDER = "checkpoints"
OWN = "sqlite://"
"""The user's database."""

STORE, BACKEND, DSN = "GRAFLOW_CKPT_STORE", "WORKFLOW_CHECKPOINT_BACKEND", "WORKFLOW_CHECKPOINT_DSN"
ROLL_OUT = "USE_SQLITE_CHECKPOINTS"

_BACKENDS = ("memory", "local", "sqlite", "redis", "postgres", "s3", "gcs", "azure")
_SAME = {"file": "local", "rediss": "redis", "postgresql": "postgres", "gs": "gcs", "az": "azure"}
"""What addresses call them."""

_DEFAULTS = {"memory": "memory:", "local": FOLDER, "sqlite": OWN}
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)\Z")


def said(env: Mapping[str, str] = os.environ) -> str | None:
    """The store that the environment names."""
    if store := env.get(STORE, "").strip():
        return store
    dsn, backend = env.get(DSN, "").strip(), env.get(BACKEND, "").strip().lower()
    if not backend:
        return dsn or None
    kind = _known(backend, BACKEND)
    if dsn and _kind_of(dsn) != kind and not (kind == "sqlite" and _kind_of(dsn) == "local"):
        raise CheckpointError(
            f"{BACKEND} is {backend}, and {DSN} leads to {_kind_of(dsn) or 'something else'}.",
            hint="Set one of them alone, or both to the same.",
        )
    if dsn:
        return f"{OWN}/{dsn}" if _kind_of(dsn) != kind else dsn  # sqlite with the bare path of its file
    if kind not in _DEFAULTS:
        raise CheckpointError(f"{BACKEND} is {backend}, and {DSN} does not say where.", hint=f"Set {DSN}.")
    return _DEFAULTS[kind]


def for_program(
    session: str | None,
    file: str | None = None,
    default: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> str:
    """Where the program of that file keeps a session; `default`: what the command line would take for a new
    one. In the user's database programs of all folders meet: what another one calls the same is not ours."""
    named = said(env)
    if named is not None:
        return named
    usual = default or (OWN if _rolled_out(session, env) else FOLDER)
    if session is None:
        return usual
    if _knows(FOLDER, session):
        return FOLDER
    found = _file_in_own(session)
    if found is None:
        return usual
    if file is None or found in ("", file):
        return OWN
    log.warning(
        "session %s in %s is of another program, %s; this one is kept in %s (to go on with that one: "
        "graflow-ckpt resume %s --store %s)", session, OWN, found, FOLDER, session, OWN,
    )  # fmt: skip
    return FOLDER


def for_command_line(env: Mapping[str, str] = os.environ) -> str:
    """Where the command line looks first, and keeps what nobody else has a place for."""
    return said(env) or (FOLDER if os.path.isdir(FOLDER) else OWN)


def others(store: str, env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Where else to look for a session, when `store` was taken because nobody has named one."""
    if said(env) is not None or store not in (FOLDER, OWN):
        return ()
    return tuple(place for place in (FOLDER, OWN) if place != store and _exists(place, env))


def goes_without_saying(store: str, env: Mapping[str, str] = os.environ) -> bool:
    """Whether commands find what is there without being told."""
    usual = store in (FOLDER, OWN) or store == folder_of(own_file(env))
    return usual and said(env) in (None, store)


# --- one checkpoint elsewhere ------------------------------------------------------------


def _kind_of(store: str) -> str | None:
    """`s3` for `s3://bucket`, `local` for a path; None: none of these."""
    kind = _SAME.get(scheme := backend_of(store), scheme)
    return kind if kind in _BACKENDS else None


def path_at(
    storage: str,
    own: CheckpointStore,
    auto: str,
    path: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> str:
    """A path as `checkpoint(storage=…)` means it: in the store at hand if it is of that kind, else in the one
    that the environment names for it. `auto`: the path that it would have else; `path`: what was given."""
    kind = _known(storage.lower(), "storage")
    if path is not None and ("/" in path or kind == "local"):
        if _kind_of(path) != kind:
            raise CheckpointError(
                f"{path} is not at storage={storage!r}.", hint="Give the path alone, or a name."
            )
        return path
    if _kind_of(own.url) == kind:
        return path or auto
    folder = open_store(_storage(kind, env)).folder
    # under a name that no session gives: the session's own ones are counted in its own store
    name = path or auto.rpartition("/")[2].removeprefix("session_")
    return f"{folder}/{name}" if folder else name


def _storage(kind: str, env: Mapping[str, str]) -> str:
    variable = f"GRAFLOW_CKPT_{kind.upper()}_URL"
    named = [env.get(variable, "").strip(), env.get(STORE, "").strip(), env.get(DSN, "").strip()]
    found = next((store for store in named if store and _kind_of(store) == kind), _DEFAULTS.get(kind))
    if found is None:
        raise CheckpointError(
            f"storage={kind!r}: nothing says where that is.",
            hint=f"Set {variable} (or {STORE}) to its address, or give the path with it: path='{kind}://…'.",
        )
    return found


# --- looking ---------------------------------------------------------------------------


def _knows(place: str, session: str) -> bool:
    return _exists(place, os.environ) and any(True for _ in open_store(place).list(session))


def _file_in_own(session: str) -> str | None:
    """The program of a session in the user's database; None: it is not there, "": nobody knows."""
    if not _exists(OWN, os.environ):
        return None
    for _, raw in open_store(OWN).newest(1, session=session):
        try:
            return str(json.loads(raw).get("file") or "")
        except (ValueError, AttributeError):
            return ""
    return None


# --- reading ---------------------------------------------------------------------------


def _known(backend: str, what: str) -> str:
    kind = _SAME.get(backend, backend)
    if kind not in _BACKENDS:
        raise CheckpointError(f"{what}={backend!r} is none of: {', '.join(_BACKENDS)}.")
    return kind


def _exists(place: str, env: Mapping[str, str]) -> bool:
    return os.path.isdir(place) if place == FOLDER else os.path.isfile(file_of(place, env))


def _rolled_out(session: str | None, env: Mapping[str, str]) -> bool:
    """Whether a new session is among those that go to the database; of an id the same every time."""
    share = _share(env.get(ROLL_OUT, "").strip().lower())
    draw = int.from_bytes(os.urandom(4) if session is None else _digest(session))
    return draw < share * 2**32


def _digest(text: str) -> bytes:
    from blake3 import blake3

    return blake3(text.encode()).digest(4)


def _share(text: str) -> float:
    if text in ("", "false", "no", "off"):
        return 0.0
    if text in ("true", "yes", "on"):
        return 1.0
    match = _SHARE.match(text)
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share <= 1:
        raise CheckpointError(f"{ROLL_OUT}={text!r} is neither true nor false nor a share such as 10%.")
    return share
