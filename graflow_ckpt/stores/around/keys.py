"""Keys: where the secrets come from that seal checkpoints.

In this order: `GRAFLOW_CKPT_KEY`, the file that `GRAFLOW_CKPT_KEY_FILE` names, the local key of
the user. A key is written `id:hex`, 32 bytes of it; several are divided by commas or white space, the
first one seals, all verify. The local key is made on first use, in the user's state folder, so
that two processes at once end up with one key and a power cut leaves a whole one or none.

What encrypts are the same keys, unless there are others for that alone: those that a program has given to its
store, else the Fernet keys of `GRAFLOW_CKPT_FERNET_KEY` (secrets of 32 bytes; tokens of Fernet are not
written). The first of them encrypts, all open, and those that seal open, too. None of them seals.

A local key that others can read or replace is refused. A file that an operator names is refused
only if others can write it: mounted secrets are commonly readable. Not here: the seals (seals.py).
"""

from __future__ import annotations

import os
import re
import stat
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from blake3 import blake3

from graflow_ckpt.core.errors import CheckpointError, NoKey, UnsafeCheckpoint
from graflow_ckpt.core.protocols import Readable
from graflow_ckpt.stores.files.disk import Disk
from graflow_ckpt.stores.files.lock import held
from graflow_ckpt.stores.files.trio import make_folders

SIZE: Final = 32

_VARIABLE: Final = "GRAFLOW_CKPT_KEY"
_FILE_VARIABLE: Final = "GRAFLOW_CKPT_KEY_FILE"
FERNET_VARIABLE: Final = "GRAFLOW_CKPT_FERNET_KEY"
_LIMIT: Final = 1 << 16
_KEY: Final = re.compile(r"([A-Za-z0-9_.-]{1,64}):([0-9a-fA-F]{64})")


class Keyring:
    """Secrets by id. The first one seals, all of them verify. `encrypting`: those that come first to encrypt,
    and neither seal nor verify."""

    __slots__ = ("_opening", "_secrets")

    def __init__(self, keys: Mapping[str, bytes], encrypting: Mapping[str, bytes] | None = None) -> None:
        if not keys:
            raise CheckpointError("A keyring needs a key.", hint="graflow-ckpt key new makes one.")
        self._secrets = dict(keys)
        self._opening = {**(encrypting or {})}
        for key_id, secret in keys.items():
            self._opening.setdefault(key_id, secret)

    @property
    def signing(self) -> tuple[str, bytes]:
        """The id and the secret that new checkpoints are sealed with."""
        return next(iter(self._secrets.items()))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._secrets)

    def secret(self, key_id: str) -> bytes | None:
        return self._secrets.get(key_id)

    @property
    def encrypting(self) -> tuple[str, bytes]:
        """The id and the secret that new checkpoints are encrypted with, where they are."""
        return next(iter(self._opening.items()))

    @property
    def opening(self) -> Mapping[str, bytes]:
        """All secrets that can open something, by ids."""
        return self._opening

    def opener(self, key_id: str) -> bytes | None:
        """Return the secret that opens what was encrypted under that id."""
        return self._opening.get(key_id)

    def around(self, store: Readable) -> Keyring:
        """Return a ring with the keys that a program has given to the store: they encrypt there."""
        return Keyring(self._secrets, {**store.keys, **self._opening}) if store.keys else self

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._secrets)})"  # never a secret: this ends up in logs

    @classmethod
    def for_store(cls, store: Readable, env: Mapping[str, str] = os.environ) -> Keyring:
        """Return the keys for what a store keeps: never this machine's alone if others can write there."""
        return cls.load(env, local=not store.shared).around(store)

    @classmethod
    def reading(cls, *, shared: bool, env: Mapping[str, str] = os.environ) -> Self:
        """Return the keys for what is only read, to be sealed again elsewhere. Unless others can write there,
        also the local one, with which it was sealed before a key was named."""
        found = cls.load(env, local=not shared)
        if shared or uses_local_key(env) or not os.path.exists(local_key_path(env)):
            return found
        named = {name: value for name, value in env.items() if name not in (_VARIABLE, _FILE_VARIABLE)}
        return cls({**cls.load(named)._secrets, **found._secrets}, found._opening)

    @classmethod
    def load(cls, env: Mapping[str, str] = os.environ, *, local: bool = True) -> Self:
        """Return the keys of this environment; with `local=False` (shared stores) never the local one."""
        text = env.get(FERNET_VARIABLE, "").strip()
        fernet = fernet_keys(text) if text else {}
        if text := env.get(_VARIABLE, "").strip():
            return cls(_parse(text, _VARIABLE), fernet)
        if named := env.get(_FILE_VARIABLE, "").strip():
            path = Path(named)
            return cls(_parse(_read(path, 0o027), str(path)), fernet)  # of a group of workers, say
        if not local:
            raise NoKey(
                "A shared store needs a key that all who use it have, and none is set.",
                hint=f"Make one (graflow-ckpt key new) and set {_VARIABLE} or {_FILE_VARIABLE} everywhere.",
            )
        path = local_key_path(env)
        if not os.path.exists(path):  # Path.exists raises where it may not look
            _make(path)
        _check_owner(path.parent, path.parent.stat(), 0o022)
        return cls(_parse(_read(path, 0o077), str(path)), fernet)


def new_key() -> str:
    """Return a new key as it is written. Its id is a digest of it: one id never means two keys."""
    secret = os.urandom(SIZE)
    return f"{blake3(secret, derive_key_context='graflow_ckpt 2025 key id').hexdigest(6)}:{secret.hex()}"


def uses_local_key(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment names no key."""
    return not (env.get(_VARIABLE, "").strip() or env.get(_FILE_VARIABLE, "").strip())


def key_file(env: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file of the keys of this environment; None: they are in the environment itself."""
    if env.get(_VARIABLE, "").strip():
        return None
    named = env.get(_FILE_VARIABLE, "").strip()
    return Path(named) if named else local_key_path(env)


def put_first(path: Path) -> str:
    """Put a new key before those of a file; return its id. The others still verify what they have sealed."""
    path = Path(os.path.realpath(path))  # a link keeps leading there
    try:
        with held(f"{path}.lock"):  # two processes at the same time lose no key
            mode = stat.S_IMODE(path.stat().st_mode)
            text = _read(path, 0o022)
            _parse(text, str(path))
            made = new_key()
            draft = _drafted(path, _whole(path, f"{made}\n{text.strip()}\n"), mode)
            os.replace(draft, path)
            Disk().sync_folder(str(path.parent))
    except OSError as error:
        raise CheckpointError(
            f"No key could be put into {path}: {error.strerror}.",
            hint="Write a new one (graflow-ckpt key new) before the others by hand.",
            path=str(path),
        ) from error
    return made.partition(":")[0]


def local_key_path(env: Mapping[str, str] = os.environ) -> Path:
    """Return where the local key of the user is, or will be."""
    state = Path(env.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():  # not set, or to be ignored, says the XDG specification
        state = Path(env.get("HOME") or Path.home()) / ".local" / "state"
    return state / "graflow_ckpt" / "key"


# --- reading ---------------------------------------------------------------------------


def fernet_keys(text: str, origin: str = FERNET_VARIABLE) -> dict[str, bytes]:
    """Return keys as `Fernet.generate_key()` writes them, by ids that are digests of them."""
    keys: dict[str, bytes] = {}
    for number, word in enumerate(re.split(r"[\s,]+", text.strip()), 1):
        try:
            secret = urlsafe_b64decode(word)
        except ValueError:
            secret = b""
        if len(secret) != SIZE:  # the message must not hold the word: it may be a secret
            raise CheckpointError(
                f"Key {number} of {origin} is no Fernet key: {SIZE} bytes in URL-safe base64.",
                hint="Fernet.generate_key() makes one.",
                origin=origin,
            )
        digest = blake3(secret, derive_key_context="graflow_ckpt 2026 fernet id").hexdigest(6)
        keys[f"fernet-{digest}"] = secret
    return keys


def _parse(text: str, origin: str) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for number, word in enumerate(re.split(r"[\s,]+", text.strip()), 1):
        match = _KEY.fullmatch(word)
        if match is None or match[1] in keys:  # the message must not hold the word: it may be a secret
            raise CheckpointError(
                f"Key {number} of {origin} is not an id of its own, a colon, {2 * SIZE} hexadecimal digits.",
                hint="graflow-ckpt key new prints one.",
                origin=origin,
            )
        keys[match[1]] = bytes.fromhex(match[2])
    return keys


def _read(path: Path, forbidden: int) -> str:
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:  # a folder, which a mount makes of a missing file; a NUL
        why = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"The key file {path} cannot be read: {why}.", path=str(path)) from error
    with file:
        fd = file.fileno()
        if os.fstatvfs(fd).f_flag & os.ST_RDONLY:  # a secret that is mounted, where no mode can be changed
            forbidden &= 0o022
        _check_owner(path, os.fstat(fd), forbidden)  # of what is open, not of what the name means by now
        return _whole(path, file.read(_LIMIT + 1))


def _whole(path: Path, text: str) -> str:
    """Return what a key file has, or is to have: cut off, it would lose keys at the next change."""
    if len(text) > _LIMIT:
        raise CheckpointError(
            f"The key file {path} is refused: a key file has at most {_LIMIT} characters.",
            hint="Keep only those of its keys whose checkpoints are still there, one a line.",
            path=str(path),
        )
    return text


def _check_owner(path: Path, found: os.stat_result, forbidden: int) -> None:
    if stat.S_IMODE(found.st_mode) & forbidden:
        can = "read" if found.st_mode & forbidden & 0o044 else "change"
        raise UnsafeCheckpoint(
            f"Others can {can} {path}, so what its key has sealed proves nothing.",
            hint=f"If no other user has: chmod go= {path}. If in doubt, remove it: a new key is made, and"
            " checkpoints sealed with the old one need graflow-ckpt trust PATH.",
            path=str(path),
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeCheckpoint(
            f"{path} belongs to user {found.st_uid}, who could seal checkpoints with it.",
            hint="Remove it, or name another key in GRAFLOW_CKPT_KEY_FILE.",
            path=str(path),
        )


# --- making ----------------------------------------------------------------------------


def _make(path: Path) -> None:
    """Make the local key, unless another process has by now."""
    try:
        make_folders(Disk(), str(path.parent))
        draft = _drafted(path, new_key() + "\n", 0o600)
        try:
            _publish(draft, path)
        finally:
            os.unlink(draft)
        # or a power cut loses the key that checkpoints are sealed with
        Disk().sync_folder(str(path.parent))
    except (OSError, CheckpointError) as error:
        why = error.strerror if isinstance(error, OSError) else error.message.rstrip(".")
        raise CheckpointError(
            f"No key could be made at {path}: {why}.",
            hint=f"Make one (graflow-ckpt key new) and set {_VARIABLE} or {_FILE_VARIABLE}.",
            path=str(path),
        ) from error


def _drafted(path: Path, text: str, mode: int) -> Path:
    """Write the text to a new file beside `path`, on the disk; return its path."""
    draft = path.with_name(f".key.{os.getpid()}.{os.urandom(8).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
    except BaseException:
        os.unlink(draft)
        raise
    return draft


def _publish(draft: Path, path: Path) -> None:
    try:
        # No rename: it would replace a key that another process has begun to use.
        os.link(draft, path)
    except FileExistsError:
        return
