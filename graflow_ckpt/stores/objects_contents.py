"""Contents in a bucket: values that the checkpoints of one session have in common, each stored once.

    sessions/{id}                        which there are, and which checkpoint holds which (objects_head.py)
    data/{id}/{mark}/{name}/{n}          one, in pieces

Promise: a session's own checkpoints share; the head, which a commit changes anyway, says what they hold, so
a commit and a deletion cannot cross. What the last of them lets go is removed after that change, or, if that
is cut short, by the session's next owner or by `sweep`. Checkpoints under other names share with nobody.
Not here: what one save holds (objects_saving.py), what the dead have left (objects_orphans.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.objects_chunks import PieceSource
from graflow_ckpt.stores.objects_head import Head, Heads
from graflow_ckpt.stores.objects_lease import ObjectLease
from graflow_ckpt.stores.objects_names import Target
from graflow_ckpt.stores.objects_saving import ObjectSaving
from graflow_ckpt.stores.objects_trio import Trios


class ObjectContents:
    """Those of one store, which connects when they are used first. `sweep`: of all that is in it."""

    shares = True

    def __init__(
        self,
        opened: Callable[[], tuple[Trios, Heads]],
        target: Callable[[str], Target],
        own: Callable[[Lease], ObjectLease],
        sweep: Callable[[], int],
    ) -> None:
        self._opened, self._target, self._own = opened, target, own
        self.sweep = sweep

    def scope(self, path: str, /) -> str:
        """Its session; a name is a scope of its own, in which nothing is found again."""
        target = self._target(path)
        return target.session or f"@{target.base}"

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> ObjectSaving:
        trios, _ = self._opened()
        return trios.saving(self._target(path), self._own(lease) if lease is not None else None, stage)

    def open(self, path: str, name: str, stage: str) -> PieceSource:
        trios, _ = self._opened()
        return trios.open_content(self._target(path), name, stage)

    def distrust(self, path: str, name: str, stage: str) -> None:
        """Under another name nobody will hold it anyway."""
        target = self._target(path)
        if target.session is None:
            return

        def change(head: Head) -> Head | None:
            record = head.commits.get(target.base)
            if record is None or record.stage != stage or name not in record.contents:
                return None
            held = record.contents[name]
            return None if held in head.bad else replace(head, bad=head.bad | {held})

        _, heads = self._opened()
        heads.update(target.session, change)
