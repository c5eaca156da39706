"""The examination of this machine: each finding is ok, a warning, or bad."""

from __future__ import annotations

import os
import platform
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from graflow_ckpt.checkpoint.care import inventory
from graflow_ckpt.checkpoint.seals import key_storage_warning
from graflow_ckpt.cli import lazy, words
from graflow_ckpt.config.settings import FleetSettings
from graflow_ckpt.core.errors import CheckpointError, GraflowError, PackageMissing, ServerError
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.links.addresses import masked
from graflow_ckpt.links.environment import unknown
from graflow_ckpt.stores import folder_on_disk, open_store
from graflow_ckpt.stores.around.encodings import AEAD, key_in
from graflow_ckpt.stores.around.fallback import Fallback, entries
from graflow_ckpt.stores.around.keys import Keyring, local_key_path, uses_local_key
from graflow_ckpt.stores.around.wrapper import layers
from graflow_ckpt.stores.drivers.redis.names import is_redis
from graflow_ckpt.stores.drivers.sqlite.names import file_of, is_sqlite
from graflow_ckpt.stores.files.disk import file_system
from graflow_ckpt.stores.names import facts_in
from graflow_ckpt.stores.prefixes import unwrapped

if TYPE_CHECKING:
    from graflow_ckpt.fleet.client import Client
    from graflow_ckpt.fleet.health import PoolFacts
    from graflow_ckpt.links.redis import RedisLink

OPTIONAL = (
    "numpy", "torch", "redis", "rq", "psycopg", "obstore", "cryptography", "zstandard", "prometheus-client",
    "opentelemetry-api",
)  # fmt: skip
LIBRARIES = ("blake3", "click", "cloudpickle", "msgpack", "rich", *OPTIONAL)
MEMORY = frozenset({"tmpfs", "ramfs"})
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "lustre", "glusterfs"}
)


@dataclass(frozen=True, slots=True)
class ExaminedRow:
    """One thing that was looked at."""

    what: str
    verdict: str  # ok, warning, bad
    found: str


def examine(store: str) -> list[ExaminedRow]:
    """Look at what is installed, and at a store and its key; nothing is written to it."""
    place = open_store(store)
    if place.shared:
        key = [_keys("key", partial(Keyring.for_store, place))]
        return [*_versions(), *_server(place), *_waiting(place), *key, *encryption(place)]
    return [*_versions(), *_store(place), *_waiting(place), *_key(place), *encryption(place)]


def _versions() -> Iterator[ExaminedRow]:
    from graflow_ckpt import __version__

    yield ExaminedRow("graflow_ckpt", "ok", __version__)
    recent = "ok" if sys.version_info >= (3, 11) else "bad"
    yield ExaminedRow("python", recent, f"{platform.python_version()} ({sys.executable})")
    for name in LIBRARIES:
        try:
            yield ExaminedRow(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            optional = name in OPTIONAL
            said = f"not installed{' (optional)' if optional else ''}"
            yield ExaminedRow(name, "ok" if optional else "bad", said)


# --- the store -----------------------------------------------------------------------------

Finding = tuple[str, str]
"""A verdict, and what was found."""


def _store(place: CheckpointStore) -> Iterator[ExaminedRow]:
    folder = folder_on_disk(place)
    there = os.path.isdir(folder)
    try:
        if there or os.path.lexists(folder):  # if it is something else, that says so
            place.probe()
        elif not os.access(existing(folder), os.W_OK | os.X_OK):
            raise CheckpointError(f"{existing(folder)} is not writable, and {folder} is not there yet.")
    except CheckpointError as error:
        yield ExaminedRow("store", "bad", str(error))
        return
    said = "is writable" if there else "will be made by the first save"
    yield ExaminedRow("store", "ok", f"{folder} {said}")
    if there:
        yield ExaminedRow("store modes", *_modes(folder))
    yield from _database(place)
    yield ExaminedRow("file system", *_kind(folder))


def _database(place: CheckpointStore) -> Iterator[ExaminedRow]:
    """Check if a database file has grown."""
    url = unwrapped(place.url)
    if not is_sqlite(url) or not os.path.isfile(file_of(url)):
        return
    size = os.path.getsize(file_of(url)) / (1 << 20)
    if size > inventory.LARGE_MB:
        todo = "graflow-ckpt checkpoints prune, then vacuum"
        yield ExaminedRow("database", "warning", f"{file_of(url)} has {size:.0f} MB: {todo}")


def _modes(folder: str) -> Finding:
    found = os.stat(folder)
    mode = stat.S_IMODE(found.st_mode)
    said = f"mode {mode:04o}, owner {found.st_uid}"
    if mode & stat.S_IWOTH:
        return "bad", f"{said}: every user can write checkpoints there (chmod o-w {folder})"
    if found.st_uid not in (os.geteuid(), 0):
        return "warning", f"{said}: another user can replace what is in it"
    if mode & 0o077:
        return "warning", f"{said}: others can look into it (chmod 700 {folder})"
    return "ok", said


def _kind(folder: str) -> Finding:
    kind = file_system(folder)
    temporary = os.path.realpath(tempfile.gettempdir())
    if kind in MEMORY:
        return "warning", f"{kind}: in memory, gone with the next boot"
    if kind in NETWORK:
        return "warning", f"{kind}: a network file system; locks and syncs are only as good as its server's"
    if os.path.realpath(folder).startswith(temporary + os.sep):
        return "warning", f"{temporary} is cleaned up by the system: not for what must last"
    return "ok", kind or "not known"


def _server(place: CheckpointStore) -> Iterator[ExaminedRow]:
    """Check how a store on a server is set up, as far as it says."""
    try:
        place.probe()
        url = unwrapped(place.url)
        found = list(_server_at("server", lazy.redis_links.open_link(url)) if is_redis(url) else ())
    except (CheckpointError, ServerError) as error:
        yield ExaminedRow("store", "bad", str(error))
        return
    yield ExaminedRow("store", "ok", f"{masked(place.url)} is writable")
    yield from found
    kept = "on its disk when it is confirmed" if place.synced else "accepted, and on its disk later if at all"
    yield ExaminedRow("saves", "ok" if place.synced else "warning", f"a checkpoint is {kept}")


def _waiting(place: CheckpointStore) -> Iterator[ExaminedRow]:
    """Check for saves in a fallback's folder that wait for their store, and for what was set aside."""
    for fallback in fallbacks(place):
        where, waits, refused = fallback.waits.where, fallback.waits.waiting(), fallback.waits.refused
        if not waits:
            yield ExaminedRow("fallback", "ok", f"nothing waits in {where}")
        else:
            sessions = ", ".join(sorted({entry.session for entry in waits}))
            said = f"{words.counted(len(waits), 'checkpoint')} of {sessions} in {where}; handed over by the"
            sync = f"graflow-ckpt checkpoints sync --store '{masked(place.url)}'"
            yield ExaminedRow("fallback", "warning", f"{said} next run of each session, or by: {sync}")
        if aside := list(entries(refused)):
            said = f"{words.counted(len(aside), 'checkpoint')} in {refused.folder}, and not needed"
            yield ExaminedRow("fallback refused", "warning", f"{said}: another process had continued")


def fallbacks(store: CheckpointStore) -> list[Fallback]:
    """Return those among the wrappers around a store."""
    return [layer for layer in layers(store) if isinstance(layer, Fallback)]


def _keys(what: str, keyring: Callable[[], Keyring], where: str = "") -> ExaminedRow:
    try:
        return ExaminedRow(what, "ok", ", ".join(keyring().ids) + where)
    except CheckpointError as error:
        return ExaminedRow(what, "bad", str(error))


def existing(folder: str) -> str:
    """Return the folder, or the nearest one above it that is there."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


# --- the key -------------------------------------------------------------------------------


def _key(place: CheckpointStore) -> Iterator[ExaminedRow]:
    where = str(local_key_path()) if uses_local_key() else "set in the environment"
    if uses_local_key() and not os.path.exists(local_key_path()):
        yield ExaminedRow("key", "ok", f"none yet; {where} will be made by the first save")
    else:
        yield (found := _keys("key", Keyring.load, f" ({where})"))
        if found.verdict == "bad":
            return
    if warning := key_storage_warning(folder_on_disk(place)):
        yield ExaminedRow("key storage", "warning", warning)


def encryption(place: CheckpointStore) -> Iterator[ExaminedRow]:
    """Check an encrypted store, and yield nothing for another. Reads all metadata, no value."""
    if AEAD not in place.encoding:
        return
    if not place.shared and uses_local_key() and not os.path.exists(local_key_path()):
        yield ExaminedRow("encryption", "ok", "with the key that the first save makes")
        return
    try:
        keys = Counter(key_in(facts_in(raw)) for _, raw in place.list())
        ids = [*Keyring.for_store(place).opening]
    except GraflowError as error:
        yield ExaminedRow("encryption", "bad", str(error))
        return
    here = f"what is new, with key {ids[0]}"
    if older := sum(count for key_id, count in keys.items() if key_id in ids[1:]):
        here += f"; {words.counted(older, 'checkpoint')} with older ones (graflow-ckpt key reseal)"
    yield ExaminedRow("encryption", "ok", here)
    for key_id, count in sorted(keys.items()):
        if key_id not in ids:
            what = f"encrypted with key {key_id}, which is not here" if key_id else "not encrypted at all"
            yield ExaminedRow("encryption", "warning", f"{words.counted(count, 'checkpoint')}: {what}")


# --- a fleet -------------------------------------------------------------------------------

RQ = ((2, 9), (3,))  # from, and below
_VERDICTS = {"ok": "ok", "warning": "warning", "error": "bad"}


def examine_fleet(settings: FleetSettings) -> Iterator[ExaminedRow]:
    """Check all of it, as far as it can be reached."""
    yield ExaminedRow("settings", "ok", settings.given.file or "of the environment, no file")
    for name in unknown():
        yield ExaminedRow("settings", "warning", f"{name} is set, and nothing reads it")
    yield _fleet_key()

    try:
        client = lazy.client.connect(settings)
    except (ServerError, PackageMissing) as error:
        yield ExaminedRow("server", "bad", str(error))
        return
    except CheckpointError:  # the key, which has been told already
        return
    yield from _server_at("server", client.link)
    if settings.rq_url:
        yield from _server_at("rq server", lazy.redis_links.open_link(settings.rq_url))
    yield from _rights(client)
    yield ExaminedRow("rq", *_rq(metadata.version("rq")))
    yield from _work(client)


def _fleet_key() -> ExaminedRow:
    if uses_local_key():
        said = "none is set, so nothing can be submitted or run: GRAFLOW_CKPT_KEY or GRAFLOW_CKPT_KEY_FILE"
        return ExaminedRow("fleet key", "bad", said)
    return _keys("fleet key", partial(Keyring.load, local=False))


def _server_at(what: str, link: RedisLink) -> Iterator[ExaminedRow]:
    for one in lazy.redis_links.examine(link):
        yield ExaminedRow(what, _VERDICTS[one.level], f"{one.what} {one.hint}".strip())


def _rights(client: Client) -> Iterator[ExaminedRow]:
    """Try sessions and queues, with the rights of this user."""
    try:
        lazy.health.try_session(client.link)
        lazy.health.try_queue(client.carrier)
    except ServerError as error:
        yield ExaminedRow("rights", "bad", f"a trial session was refused: {error}")
        return
    yield ExaminedRow("rights", "ok", "a trial session was made, worked on and taken away")
    if not lazy.health.hears(client.link):
        said = "this user may not use channels (&graflow:*): who follows a session looks ten times a second"
        yield ExaminedRow("rights", "warning", said)


def _rq(version: str) -> Finding:
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if number < RQ[0]:
        return "bad", f"{version} is too old: pip install -U 'rq>=2.9,<3'"
    if number >= RQ[1]:
        return "warning", f"{version}; from 2.9 on and below 3 is what this is tested with"
    return "ok", version


def _work(client: Client) -> Iterator[ExaminedRow]:
    alive = lazy.health.pools(client.link)
    if not alive:
        yield ExaminedRow("workers", "warning", "no worker gives a sign of life: graflow-ckpt worker")
    yield from map(_pool, alive)
    versions = sorted({pool.version for pool in alive})
    if len(versions) > 1:
        yield ExaminedRow("workers", "warning", f"of several versions: {', '.join(versions)}")
    outlook = lazy.outlook.Overview(client, 1000).look()
    for queue in outlook.queues:
        if queue.ready and not queue.workers:
            said = f"{words.counted(queue.ready, 'task')} in queue {queue.name}, which no worker serves"
            yield ExaminedRow("queues", "bad", said)
    for row in outlook.sessions:
        if row.status == lazy.fleet_status.UNKNOWN:
            yield ExaminedRow("sessions", "bad", row.reason)
            continue
        for host, why in client.session(row.session).declined().items():
            yield ExaminedRow("code", "warning", f"session {row.session}, {host}: {why}")


def _pool(pool: PoolFacts) -> ExaminedRow:
    n = words.counted(len(pool.workers), "worker")
    said = f"{pool.pool}: {n} on {', '.join(pool.queues)}, {pool.version}, Python {pool.python}"
    if pool.age > lazy.outlook.LATE:
        return ExaminedRow("workers", "warning", f"{said}; no sign of life for {pool.age:.0f} s")
    return ExaminedRow("workers", "ok", f"{said}{', draining' if pool.draining else ''}")
