"""Saves that wait in the folder of a fallback until their store is back: for doctor, and for handing over."""

from __future__ import annotations

from collections.abc import Iterator

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.interfaces.cli.words import counted
from graflow_ckpt.links.addresses import masked
from graflow_ckpt.stores.fallback import Fallback
from graflow_ckpt.stores.fallback_folder import entries
from graflow_ckpt.stores.wrapping import layers


def fallbacks(store: CheckpointStore) -> list[Fallback]:
    """Those among the wrappers around a store."""
    return [layer for layer in layers(store) if isinstance(layer, Fallback)]


def findings(store: CheckpointStore) -> Iterator[tuple[str, str, str]]:
    """What waits, and what was set aside: name, verdict, text."""
    for fallback in fallbacks(store):
        where, waits = fallback.waits.where, fallback.waits.waiting()
        if not waits:
            yield "fallback", "ok", f"nothing waits in {where}"
        else:
            sessions = ", ".join(sorted({entry.session for entry in waits}))
            yield (
                "fallback",
                "warning",
                f"{counted(len(waits), 'checkpoint')} of {sessions} in {where}; handed over by the next "
                f"run of each session, or by: graflow-ckpt checkpoints sync --store '{masked(store.url)}'",
            )
        if aside := list(entries(fallback.waits.refused)):
            said = f"{counted(len(aside), 'checkpoint')} in {fallback.waits.refused.folder}"
            yield "fallback refused", "warning", f"{said}: somebody else had gone on; nobody needs them"
