"""Looking after keys: which there are, which are needed, how a new one takes over, and sealing with one."""

from __future__ import annotations

from dataclasses import dataclass

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.care.resealing import Resealed, put_sealed, reseal, usage
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.errors import CheckpointError, UnsafeCheckpoint
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store, open_store_of
from graflow_ckpt.stores.around.encodings import AEAD
from graflow_ckpt.stores.around.keys import Keyring, key_file, put_first


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key by its id: what it is for here, and what needs it."""

    id: str
    use: str
    seals: int
    encrypts: int
    journals: int


def listing(store: str) -> tuple[list[KeyRow], int]:
    """Return the keys in their order, then those that are not here; and how many checkpoints name no key."""
    place = open_store(store)
    found, uses = usage(place), _uses(place)
    ids = [*uses, *sorted(found.ids - set(uses))]
    counts = (found.seals, found.encrypts, found.journals)
    rows = [KeyRow(each, uses.get(each, "not here"), *(count[each] for count in counts)) for each in ids]
    return rows, found.unreadable


def rotated(store: str) -> tuple[str, str]:
    """Make a new key and put it first; its id, and the file. Not if the store could not be sealed with it."""
    file = key_file()
    if file is None:
        raise CheckpointError(
            "The keys are in GRAFLOW_CKPT_KEY, which this command cannot change.",
            hint="export GRAFLOW_CKPT_KEY=$(graflow-ckpt key new),$GRAFLOW_CKPT_KEY, and then: "
            "graflow-ckpt key reseal",
        )
    place = open_store(store)
    Keyring.for_store(place)  # a local one is there then, and all are sound
    if place.shared:
        place.probe()
    return put_first(file), str(file)


def resealed(manner: Manner, store: str) -> tuple[str, Resealed]:
    """Seal all again; return the key that seals, and what became of it."""
    place = open_store(store)
    keyring = Keyring.for_store(place)
    with manner.bar("sealing") as seen:
        return keyring.signing[0], reseal(place, keyring, seen)


def _uses(place: CheckpointStore) -> dict[str, str]:
    """Return what each key here is for, the first ones first."""
    keyring = Keyring.for_store(place)
    sealing = keyring.ids
    uses = dict.fromkeys(sealing, "verifies")
    uses[sealing[0]] = "seals"
    for number, key_id in enumerate(keyring.opening if AEAD in place.encoding else ()):
        its = "decrypts" if number else "encrypts"
        uses[key_id] = f"{uses[key_id]} and {its}" if key_id in uses else its
    return uses


def check_parts(path: str) -> Document:
    """Check that the other files are the ones of this meta, byte for byte; return the meta."""
    store = open_store_of(path)
    unsafe = store.unsafe(path)
    if unsafe is not None:
        raise UnsafeCheckpoint(
            f"Checkpoint {path} is not sealed: {unsafe}.",
            hint="All users could change it before it is sealed. Take the permission away first (chmod o-w).",
            path=path,
        )
    return archive.described(store, path)


def trusted(path: str) -> str:
    """Seal the meta of a checkpoint with this machine's key; the key's id.

    The other files stay as they are.
    """
    store = open_store_of(path)
    meta = check_parts(path)
    keyring = Keyring.for_store(store)
    put_sealed(store, keyring, path, meta, None)
    return keyring.signing[0]
