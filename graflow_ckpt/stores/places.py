"""Places: where checkpoints are kept if no store is named, and the list of all places used.

    GRAFLOW_CKPT_STORE                  a folder or a URL; wins over all of these
    WORKFLOW_CHECKPOINT_BACKEND         memory, local, sqlite, redis, postgres, s3, gcs or azure
    WORKFLOW_CHECKPOINT_DSN             its address; alone it says the backend, too
    USE_SQLITE_CHECKPOINTS              true, or a share (10%): so many of the new sessions of programs go
                                        to the user's database

Without any of them the place is the folder `checkpoints` of the working folder, for programs and commands
alike. Every place used is noted in a list in the user's data folder, with the program that has used it.
Commands look for a session in all of them. A program that finds its session there and not here stops and
says where it is. The list never redirects: losing it costs these hints and nothing else.

Not here: what a URL means (`open_store`), and which store a workflow names.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError, GraflowError, SessionElsewhere
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import as_typed, backend_of, open_store
from graflow_ckpt.stores.drivers.sqlite.names import file_of, folder_of, is_sqlite, own_file
from graflow_ckpt.stores.files.disk import Disk, open_own
from graflow_ckpt.stores.names import without_scheme
from graflow_ckpt.stores.prefixes import unwrapped

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
    """Return the store that the environment names."""
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
    session: str | None, program: str = "", *, here: bool = False, env: Mapping[str, str] = os.environ
) -> str:
    """Return where a program keeps a session that names no store; `program`: the file that defines it.

    A session that the same program has begun in another place is refused with the two ways on, unless `here`.
    """
    named = said(env)
    if named is not None:
        return named
    usual = OWN if _rolled_out(session, env) else FOLDER
    if usual == FOLDER and os.getcwd() == "/":
        raise CheckpointError(
            "The working folder is /, where no checkpoints are kept: is this a job of cron or a service?",
            hint=f"Name a place: --store FOLDER, {STORE}=FOLDER or workflow(store=...).",
        )
    if session is None or here or not program or _knows(usual, session):
        return usual
    places = [place for place in _used_by(program, env) if _is_other(place, usual)]
    if found := [place for place in places if _has(place, session, program)]:
        raise SessionElsewhere(
            f"Session {session} is in {' and in '.join(found)}, and not in {_address(usual)}.",
            hint=f"To continue it: --store {found[0]} or {STORE}={found[0]}. To begin a new one of that name "
            f"here: graflow-ckpt run --here, or {STORE}={usual}.",
            session=session,
            places=found,
        )
    return usual


def for_command_line(env: Mapping[str, str] = os.environ) -> str:
    """Return where the command line looks first."""
    return said(env) or FOLDER


def others(store: str, env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return where else to look when `store` was taken by default: all places used that are still there."""
    if said(env) is not None or store != FOLDER:
        return ()
    places = dict.fromkeys(place for place, _ in _read(env))
    if _exists(OWN, env):
        places[folder_of(own_file(env))] = None
    return tuple(place for place in places if _is_other(place, store) and _exists(place, env))


def goes_without_saying(store: str, env: Mapping[str, str] = os.environ) -> bool:
    """Return whether commands that are typed here find what is there without `--store`."""
    return said(env) == store or not _is_other(store, said(env) or FOLDER)


# --- the list ----------------------------------------------------------------------------

_LONGEST = 1 << 18
"""Bytes of the list: above it only the places that are still there are kept."""


_noted: set[tuple[str, str, str]] = set()
"""What this process has noted, in which list: it is not read again for each session."""


def remember(store: str, program: str, env: Mapping[str, str] = os.environ) -> None:
    """Note that a program keeps sessions in a store. What cannot be noted costs hints alone."""
    place, path = _address(store), _list_file(env)
    if (path, place, program) in _noted or _is_passing(place, env):
        return
    _noted.add((path, place, program))
    if (place, program) in _read(env):
        return
    line = f"\n{json.dumps([place, program])}\n"  # the line before it may have been cut off
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if os.path.exists(path) and os.path.getsize(path) > _LONGEST:
            kept = "".join(json.dumps(entry) + "\n" for entry in _read(env) if _exists(entry[0], env))
            draft = f"{path}.{os.getpid()}"
            with suppress(FileNotFoundError):
                os.unlink(draft)  # of a killed process of that number, or a link of another user
            with open(Disk().create(draft), "w", encoding="utf-8") as file:
                file.write(kept)
            os.replace(draft, path)
        fd = open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)
    except (OSError, CheckpointError) as error:
        log.debug("the list of places cannot be written: %s", error)


def knows(place: str, name: str) -> bool:
    """Return whether a place has a session or workflow of that name; one that cannot be asked has none."""
    try:
        return _knows(place, name) or any(True for _ in open_store(place).newest(1, workflow=name))
    except (GraflowError, OSError) as error:
        log.warning("%s is not asked for %s: %s", place, name, error)
        return False


def _read(env: Mapping[str, str]) -> dict[tuple[str, str], None]:
    """Return (place, program) in the order of first use; a damaged line counts for nothing."""
    found: dict[tuple[str, str], None] = {}
    try:
        fd = open_own(_list_file(env), os.O_RDONLY)
        with open(fd, encoding="utf-8", errors="replace") as file:
            lines = file.read(2 * _LONGEST).split("\n")
    except (OSError, CheckpointError):
        return found
    for line in lines:
        try:
            place, program = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(place, str) and isinstance(program, str):
            found[place, program] = None
    return found


def _list_file(env: Mapping[str, str]) -> str:
    return os.path.join(os.path.dirname(own_file(env)), "places")


def _used_by(program: str, env: Mapping[str, str]) -> list[str]:
    return [place for place, other in _read(env) if other == program and _exists(place, env)]


def _has(place: str, session: str, program: str) -> bool:
    """Return whether the session there is the program's; ask only places that the program has used."""
    try:
        for _, raw in open_store(place).newest(1, session=session):
            return str(json.loads(raw).get("program") or program) == program
    except (GraflowError, OSError, ValueError, AttributeError) as error:
        log.debug("%s is not asked for %s: %s", place, session, error)
    return False


def _address(store: str) -> str:
    """Return a place as it is listed: the same from every working folder."""
    if store == OWN:
        return folder_of(own_file())
    path = without_scheme(store)
    return as_typed(store) if "://" in path or path.startswith("memory:") else os.path.realpath(path)


def _is_other(place: str, than: str) -> bool:
    return _address(place) != _address(than)


def _is_passing(place: str, env: Mapping[str, str]) -> bool:
    """Return whether a place ends with the process or the machine's temporary files: it is not listed."""
    if backend_of(place) == "memory":
        return True
    temporary = ["/dev/shm", *([env["TMPDIR"]] if env.get("TMPDIR") else ["/tmp", "/var/tmp"])]
    path = without_scheme(unwrapped(place).removeprefix("sqlite:///"))
    return "://" not in path and any(f"{path}/".startswith(f"{os.path.realpath(t)}/") for t in temporary)


# --- one checkpoint elsewhere ------------------------------------------------------------


def _kind_of(store: str) -> str | None:
    """Return `s3` for `s3://bucket`, `local` for a path; None: none of these."""
    kind = _SAME.get(scheme := backend_of(store), scheme)
    return kind if kind in _BACKENDS else None


def path_at(
    storage: str,
    own: CheckpointStore,
    auto: str,
    path: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> str:
    """Return a path as `checkpoint(storage=…)` means it: in the store at hand if it is of that kind, else in
    the one that the environment names. `auto`: the path that it would have else; `path`: what was given."""
    kind = _known(arguments.text("storage", storage).lower(), "storage")
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


# --- reading ---------------------------------------------------------------------------


def _known(backend: str, what: str) -> str:
    kind = _SAME.get(backend, backend)
    if kind not in _BACKENDS:
        raise CheckpointError(f"{what}={backend!r} is none of: {', '.join(_BACKENDS)}.")
    return kind


def _exists(place: str, env: Mapping[str, str]) -> bool:
    """Return whether it is worth looking there; a server is asked to find out."""
    if is_sqlite(place):
        return os.path.isfile(file_of(place, env))
    return "://" in place or os.path.isdir(place)


def _rolled_out(session: str | None, env: Mapping[str, str]) -> bool:
    """Return whether a new session is among those that go to the database; the same each time for an id."""
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
