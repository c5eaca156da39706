"""Exporting: what is meant goes into a portable file; and what one has in it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from graflow_ckpt.checkpoint.inventory import cut_of, inventory
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.checkpoint.model import parse
from graflow_ckpt.checkpoint.portable import PortableFile, PortableWriter
from graflow_ckpt.core.errors import CheckpointNotFound, NoSession
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.interfaces.cli.bars import along
from graflow_ckpt.interfaces.cli.finding import checkpoint_path
from graflow_ckpt.interfaces.cli.journey import Luggage
from graflow_ckpt.interfaces.cli.manner import Document
from graflow_ckpt.stores import open_store, open_store_of


def exported(store: str, what: Sequence[str], file: str, *, replace: bool, watched: bool) -> Document:
    """Write the file; what is in it."""
    place = open_store(store)
    going = Luggage.named(place, store, what, checkpoint_path) if what else Luggage.all(place)
    if going.damaged:
        first = going.damaged[0]
        assert first.error is not None
        raise first.error
    whole, paths = list(going.sessions), going.paths
    if not whole and not paths:
        raise NoSession(f"There are no checkpoints in {store}.", hint="--store names another place.")
    keys = Keyring.reading(shared=place.shared)
    count = 0
    with PortableWriter(file, replace=replace) as writer:
        for session in whole:
            writer.session(place, session)  # first: cuts may be newer than the journal, never older
            for path in along(_paths(place, session), f"exporting {session}", show=watched):
                try:
                    writer.cut(place, keys, path)
                except CheckpointNotFound:
                    continue  # a retention has taken it away meanwhile
                count += 1
        for path in paths:
            own = open_store_of(path)
            writer.cut(own, Keyring.reading(shared=own.shared), path)
            count += 1
    return {"file": file, "sessions": whole, "checkpoints": count, "size": os.path.getsize(file)}


def contents(file: PortableFile) -> tuple[list[str], list[str], list[str]]:
    """The sessions that are in a file as a whole, single checkpoints, and who says to have made them."""
    whole, paths = list(file.sessions), []
    makers: dict[str, None] = {}
    for path, raw in file.list():
        cut = cut_of(path, raw)
        if cut is None or cut.session not in whole:
            paths.append(path)
        meta = parse(path, raw, ".meta.json")
        said = f"session {meta.get('session_id')}: {meta.get('file')} on {meta.get('host')}"
        makers[f"{said}, key {meta.get('key_id') or 'none'}"] = None
    return whole, paths, list(makers)


def _paths(place: CheckpointStore, session: str) -> list[str]:
    """With what it has gone back behind. One that cannot be read is in it, so that it is an error."""
    found = inventory(place, session)
    return [cut.path for cut in (*found.unreadable, *found.cuts)]
