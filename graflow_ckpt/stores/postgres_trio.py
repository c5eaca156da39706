"""The trio in Postgres: chunks, and one row that points at them.

    graflow_ckpt.checkpoints   name, commit_number, put, session, workflow, status,
                               parts: {pkl: {put, stage, size, count}, …}, meta,
                               pkl, state: the last chunk of each part
    graflow_ckpt.chunks        those before: postgres_contents.py
    graflow_ckpt.staging       put, session, epoch, begun: who writes chunks that no row points at

    W1 full chunks, each in a transaction of its own, the first with its row in `staging`
    W2 the commit: epoch and claim are locked, all chunks are there, the row is set with the last ones, the
       chunks of the former row go

Promise: before W2 a reader finds the previous checkpoint, after it this one, whole. A reader whose chunks
go while it reads finds out, and that meta has changed. Each put has an id of its own, so that no put writes
into another's chunks, and a commit that is asked for again changes nothing. A server that goes away and
comes back within some seconds interrupts nothing; after that the save has failed. What a meta says that
rows are listed by can stand in a column, whatever the meta holds. Nobody believes it: what counts is
sealed.
Not here: who may write (postgres_lease.py), and what a path names (postgres_names.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from graflow_ckpt.core.errors import (
    CheckpointError,
    CheckpointNotFound,
    GraflowError,
    SaveOutcomeUnknown,
    ServerError,
    ServerGone,
)
from graflow_ckpt.core.protocols import PartWriter
from graflow_ckpt.stores import batches, postgres_contents
from graflow_ckpt.stores.names import (
    Collected,
    check_parts,
    contents_in,
    highest_epoch_in,
    not_found,
    not_its,
    path_of,
    replaced,
    session_of,
    unconfirmed,
)
from graflow_ckpt.stores.pieces import ChunkSink
from graflow_ckpt.stores.postgres_contents import CHUNK, LIFE, Found, PostgresSource
from graflow_ckpt.stores.postgres_lease import HELD, PostgresLease
from graflow_ckpt.stores.postgres_link import TRUE, Connection, Link, Prepared, Rollback

_LACKS = "GC001"  # what the commit says when chunks are gone
_FIRST = 100  # metas that are read at once, before it is known whether anybody wants more
_PAGE = 500
_AT_ONCE = 100  # that one transaction deletes: each takes a lock, of which a server has some thousands
_COLUMNS = {"pkl": "pkl", "state.json": "state"}  # of the last chunks
# As most saves are: a name that is new, one chunk a part, an owner. By way of the routine it takes some
# 15 % longer. Nothing comes back if it is another save, or was asked for before: then the routine decides.
_NEW = Prepared(
    "new",
    """insert into graflow_ckpt.checkpoints
        (put, name, session, workflow, status, parts, commit_number, meta, pkl, state)
    select %s, %s, %s, %s, %s, %s::jsonb, nextval('graflow_ckpt.commits'), %b, %b, %b
        from graflow_ckpt.sessions where session = %s and epoch = %s::bigint and claim = %s for share
    on conflict do nothing returning graflow_ckpt.durable()""",
)
# Without an owner, who is locked already where there is one.
_PUT = "select graflow_ckpt.put(null, null, %s, %s, %s, %s, %s, %s::jsonb, %s, %b, %b, %b)"
# A meta by itself is for the parts that are there, unless there are none.
_ALONE = f"""with standing as materialized (
        select put = %s or parts = '{{}}' or exists (
                select from jsonb_each(parts) where value ->> 'stage' = %s) as fits
            from graflow_ckpt.checkpoints where name = %s for update)
    select case when (select not fits from standing) then 'replaced' else ({_PUT}) end"""
_STAGE = "select graflow_ckpt.stage({}, %s, %s, %s, %b)"
_OPEN = """select its, case when (its ->> 'count')::integer <= 1 then {column} else (select data
        from graflow_ckpt.chunks where chunks.put = its ->> 'put' and part = %s and number = 0) end
    from graflow_ckpt.checkpoints, lateral (select parts -> %s as its) as one where name = %s"""
_LAST = "select {column} from graflow_ckpt.checkpoints where name = %s and parts -> %s ->> 'put' = %s"
_Sinks = dict[str, ChunkSink]


@dataclass(frozen=True, slots=True)
class Put:
    """One write: of what, by whom, and under which id."""

    base: str
    lease: PostgresLease | None
    stage: str
    id: str = field(default_factory=lambda: os.urandom(16).hex())

    @property
    def fence(self) -> list[str | int]:
        return [] if self.lease is None else self.lease.fence

    @property
    def held(self) -> str:
        return "" if self.lease is None else HELD


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is listed; None: whatever it is."""

    session: str | None = None
    prefix: str = ""
    workflow: str | None = None
    status: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        """For a `where`, and its arguments."""
        parts, args = ["true"], list[object]()
        for column in ("session", "workflow", "status"):
            if (value := getattr(self, column)) is not None:
                parts.append(f"{column} = %s")
                args.append(listed_by(value) or "")
        if self.prefix:
            parts.append("starts_with(name, %s)")
            args.append(self.prefix)
        return " and ".join(parts), args


class Trios:
    """The checkpoints of one store. `folder`: what their paths start with."""

    def __init__(self, link: Link, folder: str) -> None:
        self._link = link
        self._folder = folder

    # --- writing -----------------------------------------------------------------------

    def write(self, put: Put, parts: Sequence[tuple[str, PartWriter]]) -> bool:
        """Write a trio; the last of `parts` is its meta. Whether it is on the server's disk."""
        names = [part for part, _ in parts]
        check_parts(names)
        sinks = {part: ChunkSink(CHUNK, self._stager(put, part)) for part in names[:-1]}
        try:
            for part, writer in parts[:-1]:
                writer(sinks[part])
            meta = Collected()
            parts[-1][1](meta)
            return self._commit(put, sinks, bytes(meta.data))
        except SaveOutcomeUnknown:
            raise  # it may stand: nothing of it is to be taken away
        except BaseException:
            if any(sink.staged for sink in sinks.values()):
                with suppress(GraflowError):  # what stays is swept later
                    self._link.run(lambda c: c.execute("select graflow_ckpt.withdraw(%s)", [put.id]))
            raise

    def sweep(self, lease: PostgresLease) -> None:
        """Clear away what dead writers have left: former owners of the session, and the very slow."""
        args = [lease.session, lease.epoch, LIFE]
        self._link.run(lambda c: c.execute("select graflow_ckpt.sweep(%s, %s, %s)", args))
        postgres_contents.clear(self._link)

    def _stager(self, put: Put, part: str) -> Callable[[int, bytearray], None]:
        """W1."""

        def stage(number: int, chunk: bytearray) -> None:
            def ask(connection: Connection) -> bool:
                asked = _STAGE.format("session, epoch" if put.held else "null, null") + put.held
                args = [put.id, part, number, chunk, *put.fence]
                found = connection.execute(asked.encode(), args).fetchone()
                return found == (True,)

            if not self._link.sure(ask):
                assert put.lease is not None  # without one there is no fence
                put.lease.lost()

        return stage

    def _commit(self, put: Put, sinks: _Sinks, meta: bytes) -> bool:
        """W2."""
        each, staged, stage = list[str](), 0, json.dumps(put.stage)
        for part, sink in sinks.items():  # as json.dumps would, in half the time
            each.append(
                f'"{part}":{{"put":"{put.id}","stage":{stage},"size":{sink.size},"count":{sink.count}}}'
            )
            staged += sink.staged
        tails = [(sinks[part].tail or None) if part in sinks else None for part in _COLUMNS]
        row = [put.id, put.base, *fields_of(put.base, meta), f"{{{','.join(each)}}}"]

        names, has_replaced = contents_in(meta), [False]
        path = path_of(self._folder, put.base)

        def commit(connection: Connection) -> str:
            has_replaced[0] = False
            if put.lease is not None and not staged:
                stands = _NEW.row(connection, [*row, meta, *tails, *put.fence])
                if stands is not None:
                    return "synced" if stands == [TRUE] else "accepted"
            asked, alone = (_PUT, []) if sinks else (_ALONE, [put.id, put.stage, put.base])
            args = [*alone, *row, staged > 0, meta, *tails, *put.fence]
            found = connection.execute((asked + put.held).encode(), args).fetchone()
            has_replaced[0] = True
            return "fenced" if found is None else str(found[0])

        def holding(connection: Connection) -> str:
            with connection.transaction():
                hold = "select graflow_ckpt.hold_contents(%s, %s, %s)"
                connection.execute(hold, [put.id, put.base, list(names)])
                outcome = commit(connection)
                if outcome in ("fenced", "replaced"):
                    raise Rollback  # and no more than this: an attempt before it may have been committed
            return outcome

        try:
            outcome = self._link.sure(holding if names else commit)
        except ServerGone as error:
            raise unconfirmed(path, error) from error
        except ServerError as error:
            if error.ids.get("code") != _LACKS:
                raise postgres_contents.in_our_words(error, path) from error
            raise CheckpointError(
                f"The checkpoint {path} was not written: chunks of its {error.text} are gone.",
                hint=f"Writing took more than {LIFE} seconds, or the server has lost what it had confirmed.",
                path=path,
            ) from error
        if outcome == "fenced":
            assert put.lease is not None
            put.lease.lost()
        if outcome == "replaced":
            raise replaced(path)
        if has_replaced[0]:
            postgres_contents.clear_quietly(self._link)  # what the former one held
        return outcome == "synced"

    # --- reading -----------------------------------------------------------------------

    def open_part(self, base: str, part: str, stage: str) -> PostgresSource:
        path = path_of(self._folder, base)
        asked = _OPEN.format(column=_COLUMNS[part]).encode()

        def ask(connection: Connection) -> tuple[dict[str, str | int] | None, bytes | None] | None:
            return connection.execute(asked, [part, part, base], binary=True).fetchone()

        row = self._link.sure(ask)
        if row is None:
            raise self._not_found(base)
        found, first = row
        if found is None or found["stage"] != stage or (first is None and found["count"]):
            raise not_its(path, part)
        put, last = str(found["put"]), _LAST.format(column=_COLUMNS[part])
        size, count = int(found["size"]), int(found["count"])
        there = Found(put, part, size, count, first or b"", (last, [base, part, put]))
        return PostgresSource(self._link, there, path)

    def meta(self, base: str) -> bytes:
        asked = "select meta from graflow_ckpt.checkpoints where name = %s"
        found = self._link.sure(lambda c: c.execute(asked, [base], binary=True).fetchone())
        if found is None:
            raise self._not_found(base)
        return bytes(found[0])

    def metas(self, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
        """Names and metas, the last committed first.

        Who looks at some only pays for a page. Who goes on gets all names at once: with one page after
        the other, a checkpoint that is written anew meanwhile would move out of sight.
        """
        condition, args = wanted.condition()
        newest = f"from graflow_ckpt.checkpoints where {condition} order by commit_number desc"
        first = self._all(f"select name, meta {newest} limit {_FIRST}", args)
        yield from first
        if len(first) < _FIRST:
            return
        seen = {name for name, _ in first}
        names = iter([name for (name,) in self._all(f"select name {newest}", args) if name not in seen])
        while page := list(islice(names, _PAGE)):
            asked = "select name, meta from graflow_ckpt.checkpoints where name = any(%s)"
            found = dict(self._all(asked, [page]))
            for name in page:
                if name in found:  # else deleted meanwhile
                    yield name, found[name]

    def newest(self, wanted: Wanted, limit: int) -> list[tuple[str, bytes]]:
        """The same for the first of them, in one look."""
        condition, args = wanted.condition()
        newest = f"from graflow_ckpt.checkpoints where {condition} order by commit_number desc"
        return self._all(f"select name, meta {newest} limit %s::bigint", [*args, batches.within(limit)])

    def highest_epoch(self, session: str) -> int:
        """From the session's metas, should its row have been lost."""
        return highest_epoch_in(raw for _, raw in self.metas(Wanted(session)))

    # --- deleting ----------------------------------------------------------------------

    def delete_many(self, bases: Sequence[str]) -> int:
        """How many there were. Two who do the same do not block each other: both go by the names."""
        return sum(
            self._delete_some(sorted(set(bases[at : at + _AT_ONCE]))) for at in range(0, len(bases), _AT_ONCE)
        )

    def _delete_some(self, bases: list[str]) -> int:
        asked = "select count(*) filter (where graflow_ckpt.remove(name)) from unnest(%s::text[]) as name"
        found = self._link.run(lambda c: c.execute(asked, [bases]).fetchone())
        assert found is not None
        if found[0]:
            postgres_contents.clear_quietly(self._link)
        return int(found[0])

    # --- within ------------------------------------------------------------------------

    def _all(self, asked: str, args: list[object]) -> list[tuple[Any, ...]]:
        return self._link.sure(lambda c: c.execute(asked.encode(), args, binary=True).fetchall())

    def _not_found(self, base: str) -> CheckpointNotFound:
        return not_found(path_of(self._folder, base))


# --- what rows are listed by ------------------------------------------------------------

_FIELD = 200  # characters of a field that is listed by


def listed_by(value: object) -> str | None:
    """A field as it stands in its column; None if it can stand in none."""
    if not isinstance(value, str) or "\0" in value:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value[:_FIELD]


def fields_of(base: str, raw: bytes) -> list[str | None]:
    """Session, workflow and status; a session's own path is its own whatever the meta says."""
    try:
        meta = json.loads(raw.decode())  # of bytes it would guess the encoding
    except (ValueError, RecursionError):
        meta = {}
    if not isinstance(meta, dict):
        meta = {}
    session = session_of(base) or listed_by(meta.get("session_id"))
    return [session, listed_by(meta.get("workflow")), listed_by(meta.get("status"))]
