"""Contents in Redis: values that several checkpoints of one tag have in common, each stored once.

    graflow:ck:{tag}:contents                  hash name -> "nonce size count": what saves find
    graflow:ck:{tag}:contents:in:{nonce}:{n}   its chunks
    graflow:ck:{tag}:contents:by:{nonce}       set of holders: who holds it
    graflow:ck:{tag}:contents:of:{holder}      hash name -> "nonce size count": what each of them holds
    graflow:ck:{tag}:contents:over             set of holders that are no more, until they have let go of all

A holder is a save that is under way, by its nonce in `staging`, or a checkpoint, by the nonce of the put
that made it what it is (`holds` in its record). The commit has the checkpoint hold what its meta names, and
says of the former one that it is over, as does the script that deletes; `free` lets go, in steps.

Promise: a content is there as long as somebody holds it, and is found by saves only when all of it is there.
What a save has found or added stays until its `end`; if it dies, until the next owner of its session, or a
sweep once a chunk would have expired. Chunks expire until their content is whole; scripts may be repeated.
A tag is a session's own checkpoints, or all other names; nothing is shared beyond.
Not here: digests, and who compares them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Sequence

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.links.complaints import Key
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Argument, Script, Step
from graflow_ckpt.stores.names import holds_none
from graflow_ckpt.stores.pieces import cut
from graflow_ckpt.stores.redis_lease import RedisLease
from graflow_ckpt.stores.redis_names import Target
from graflow_ckpt.stores.redis_scripts import Scripts
from graflow_ckpt.stores.redis_trio import CHUNK, LIFE, Put, RedisSource, Trios

_AT_ONCE = 500  # names that one script looks up
_Working = Callable[[], tuple[RedisLink, Scripts, Trios]]


class RedisContents:
    """Those of one store. `working`: what works with its server, connected at the first use; `target`: what a
    path names; `own`: refuses leases of other stores."""

    shares = True

    def __init__(
        self, working: _Working, target: Callable[[str], Target], own: Callable[[Lease], RedisLease]
    ) -> None:
        self._working, self._target, self._own = working, target, own

    def scope(self, path: str, /) -> str:
        return self._target(path).keys.tag

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> RedisSaving:
        mine = self._own(lease) if lease is not None else None
        _, scripts, trios = self._working()
        return RedisSaving(scripts, trios, Put(self._target(path), mine, stage), path)

    def open(self, path: str, name: str, stage: str) -> RedisSource:
        link, _, _ = self._working()
        keys = self._target(path).keys
        found = self._find(path, name, stage).split()
        if not found:
            raise holds_none(path, name, ", or the server has dropped keys (maxmemory-policy)")
        return RedisSource(link, keys.content(found[0].decode()), int(found[1]), path)

    def distrust(self, path: str, name: str, stage: str) -> None:
        self._find(path, name, stage, damaged=True)

    def sweep(self) -> int:
        _, _, trios = self._working()
        return sum(trios.sweep(keys) for keys in trios.tags())

    def _find(self, path: str, name: str, stage: str, *, damaged: bool = False) -> bytes:
        _, scripts, _ = self._working()
        target = self._target(path)
        args: list[Argument] = [target.base, name, stage, int(damaged)]
        found: bytes = scripts["find"]([target.keys.records, target.keys.contents], args)
        return found


class RedisSaving:
    """What one save has found and added. What it adds is sent together, some chunks at a time."""

    def __init__(self, scripts: Scripts, trios: Trios, put: Put, path: str) -> None:
        self._scripts, self._trios, self._put, self._path = scripts, trios, put, path
        self._keys = put.target.keys
        self._asked = self._begun = False
        self._steps: list[Step] = []  # to be sent
        self._size = 0

    def hold(self, names: Sequence[str], /) -> Collection[str]:
        there: set[str] = set()
        for start in range(0, max(1, len(names)), _AT_ONCE):
            there |= self._pin(names[start : start + _AT_ONCE])
        return there

    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        if not self._begun:
            self._pin([])
        nonce, keys = uuid.uuid4().hex, [self._keys.staging, self._keys.contents]
        said: list[Argument] = [self._put.nonce, nonce, size, -(-size // CHUNK)]
        self._send(self._scripts["place"], keys, said)
        for number, chunk in enumerate(cut(pieces, CHUNK)):
            key = f"{self._keys.content(nonce)}{number}"
            # NX: sent again, it would make a chunk expire that is whole
            self._send(None, [key], ["SET", key, chunk, "NX", "EX", LIFE], len(chunk))
        self._send(self._scripts["keep"], keys, [*said, name])

    def settle(self) -> None:
        """All of it is there; the commit is on the server's disk only after it."""
        steps, self._steps, self._size = self._steps, [], 0
        for (script, _, _), reply in zip(steps, self._together(steps), strict=True):
            if isinstance(reply, Exception):
                raise reply
            if script is not None and reply != 1:
                raise self._cleared_away()

    def end(self) -> None:
        self._steps = []
        if self._asked:
            self._trios.free(self._keys, self._put.nonce)

    def _pin(self, names: Sequence[str]) -> set[str]:
        put, keys = self._put, self._keys
        if not self._asked:
            self._trios.name(put)  # so that a sweep comes by
        self._asked = True
        args: list[Argument] = [*put.fenced, put.nonce, put.lease.session if put.lease else ""]
        args += ["" if self._begun else 1, *names]
        found = self._scripts.sure("pin", [put.fence, keys.staging, keys.contents], args)
        if found == 0:
            put.lost()
        if found == -1:
            raise self._cleared_away()
        self._begun = True
        return {name.decode() for name in found}

    def _send(
        self, script: Script | None, keys: Sequence[Key], args: Sequence[Argument], size: int = 0
    ) -> None:
        self._steps.append((script, keys, args))
        self._size += size
        if self._size >= CHUNK:
            self.settle()

    def _together(self, steps: list[Step]) -> list[object]:
        return self._scripts.sure_together(steps) if steps else []

    def _cleared_away(self) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint {self._path} was not written: contents that it holds are not there any more.",
            hint=f"Another owner of the session cleared them away, writing took more than {LIFE} seconds, "
            "or the server drops keys (maxmemory-policy): save it again.",
            path=self._path,
        )
