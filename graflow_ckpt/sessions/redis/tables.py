"""A session in Redis as a SessionState, and back.

`read_state` takes all tables as of one moment. `write_state` stages them beside the old ones and has
them replaced by one script, so that a session is the old one or the new one; what a dead writer has
staged expires. `frozen` keeps other processes from changing a session for a while. `read_paged` reads page by
page meanwhile: the server answers others between two pages, commits of the session itself wait, and leases
are renewed. What was read is of one moment, or an error: the session is checked again after the last page.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

from graflow_ckpt.core.errors import KeyTaken, NoSession, SessionBusy, SessionError, SessionExists
from graflow_ckpt.core.facts import Cell, Live, TaskSpec
from graflow_ckpt.core.state import Gate, SessionState
from graflow_ckpt.links.complaints import damaged, fact, readable, translated
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import head_of, keys_of, source, wrong_keys
from graflow_ckpt.sessions.redis.ops import (
    Arg,
    Cells,
    new_id,
    pack_bundle,
    reference,
    referred,
    spec_of,
    unpack_bundle,
)

PRIORITY = 2**33
"""The score of a ready spec is order - priority * PRIORITY; both are exact below 2**53."""

FIELDS = (
    "status",
    "sequence",
    "steps",
    "key",
    "claim",
    "order",
    "max_steps",
    "cap",
    "flags",
    "queues",
    "held",
)
TABLES = ("h", "dl", "c", "dead", "g", "done", "sk", "pa", "er", "n", "t", "r")
PAGE = 1000
"""Items of a table that are asked for at once."""

FEW = 100
"""The same of values: each may be large."""

FREEZE = 60.0
"""Seconds after which others continue if the reader has died."""

_STAGED = 3600  # seconds until what a dead writer has staged is gone
_PAGE = 1000  # items of a table that are sent at once
_BYTES = 1 << 20  # or so many: the server does nothing else meanwhile
_DUMP, _STAGE, _REPLACE, _FREEZE = map(source, ("dump", "stage", "replace", "freeze"))


Share = Callable[[Mapping[str, Sequence[Any]]], Iterable[Sequence[str]]]

_NUMBER = re.compile(r"\d{1,300}")
_WORDS = ("status", "flags", "queues")
_MAY_LACK = ("max_steps", "cap", "held")


def parse_line(session: str, line: Any) -> dict[str, str]:
    """Parse the counters of a session; raise SessionDamaged if it has others."""
    found = dict(zip(FIELDS, line.decode(errors="replace").split("|"), strict=False))
    for name in FIELDS:
        text = found.get(name)
        if text is not None and (name in _WORDS or (not text and name in _MAY_LACK)):
            continue
        if text is None or not _NUMBER.fullmatch(text):
            raise damaged(session, "", f"{name} is {text!r}")
    return found


class Counters(NamedTuple):
    """The facts of a session that are asked for most often."""

    status: str
    steps: int
    max_steps: int | None
    next_key: int  # of specs: from 2 on it has begun


def counters_of(line: Mapping[str, str]) -> Counters:
    return Counters(line["status"], int(line["steps"]), _int(line["max_steps"]), int(line["key"]))


def read_line(link: RedisLink, session: str) -> dict[str, str]:
    """Return the counters of a session."""
    line = head_of(link.client, link.address, session)
    if line is None:
        raise gone(link, session)
    return parse_line(session, line)


def read_state(link: RedisLink, session: str, cells: Cells, *, values: bool = True) -> SessionState:
    """Return the session as of one moment; without `values` only what is known of its tasks."""
    with readable(session, link.address):
        line, *found = link.script(_DUMP)([f"{keys_of(session)}c"], ["values" if values else ""])
        if line == b"gone":
            raise gone(link, session)
        tables = {name: _pairs(flat) for name, flat in zip(TABLES, found, strict=False)}
        fields = dict(_pairs(found[-2])) if values else {}
        return state_of(session, line, tables, found[len(TABLES)], fields, found[-1] if values else [], cells)


def state_of(
    session: str, line: bytes, tables: Mapping[str, Any], queues: Sequence[list[bytes]],
    values: dict[bytes, bytes], lists: Sequence[list[bytes]], cells: Cells,
) -> SessionState:  # fmt: skip
    """Return the state that these tables are: each as pairs; queues flat, lists with their names first."""
    state = _counters(session, parse_line(session, line), dict(tables["h"]), cells)
    _specs(state, tables, queues, cells)
    _tasks(state, tables, cells)
    _values(state, values, lists, cells)
    return state


def gone(link: RedisLink, session: str) -> NoSession:
    return NoSession(f"There is no session {session} at {link.address}.", session=session)


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _counters(session: str, c: dict[str, str], h: dict[bytes, bytes], cells: Cells) -> SessionState:
    state = SessionState(session, _starts(h.get(b"starts", b"[]")), _int(c["max_steps"]))
    state.cap = _int(c["cap"])
    state.status, state.reason = c["status"], h.get(b"reason", b"").decode()
    state.sequence, state.steps = int(c["sequence"]), int(c["steps"])
    state.next_key, state.next_claim, state.next_order = int(c["key"]), int(c["claim"]), int(c["order"])
    state.epoch, state.run = int(h.get(b"epoch", 0)), int(h.get(b"run", 1))
    state.rng = cells.unpack("rng", h[b"rng"], "rng") if b"rng" in h else None
    return state


def _starts(text: bytes) -> list[str]:
    starts = fact("starts", text)
    if type(starts) is not list or not all(type(name) is str for name in starts):
        raise ValueError(f"starts is {starts!r}")
    return starts


def _int(text: str) -> int | None:
    return int(text) if text else None


def _specs(
    state: SessionState, tables: Mapping[str, Any], queues: Sequence[list[bytes]], cells: Cells
) -> None:
    for ready in queues:
        for member, score in _pairs(ready):
            spec = _keep(state, member, cells)
            state.ready.append((-spec.priority, int(float(score)) + spec.priority * PRIORITY, spec.key))
    for member, due in tables["dl"]:
        state.delayed.append((float(due), _keep(state, member, cells).key))
    state.ready.sort()
    state.delayed.sort()
    for field, record in tables["c"]:
        if not field.isdigit():
            continue
        number, _, spec = record.split(b"\x1f", 2)
        state.claimed[_keep(state, spec, cells).key] = int(number)
    dead = []
    for key, record in tables["dead"]:
        at, size, rest = record.split(b"\x1e", 2)
        _keep(state, rest[int(size) :], cells)
        dead.append((int(at), int(key), rest[: int(size)].decode()))
    state.dead = {key: error for _, key, error in sorted(dead)}


def _keep(state: SessionState, raw: bytes, cells: Cells) -> TaskSpec:
    spec = spec_of(raw, cells)
    state.keep(spec)
    return spec


def _tasks(state: SessionState, tables: Mapping[str, Any], cells: Cells) -> None:
    for name, raw in tables["g"]:
        size, need, arrived, ok, fired = raw.split(b" ", 4)
        state.gates[name.decode()] = Gate(
            int(size), int(need), int(arrived), int(ok), fired[:1] == b"1", fired[1:].decode()
        )
    state.completed = {name.decode(): int(step) for name, step in tables["done"]}
    state.skipped = {name.decode(): int(step) for name, step in tables["sk"]}
    state.passed = {name.decode(): int(step) for name, step in tables["pa"]}
    state.errors = {name.decode(): error[1:].decode() for name, error in tables["er"]}
    state.counts = {name.decode(): int(count) for name, count in tables["n"]}
    state.rounds = {int(key): _rounds(raw) for key, raw in tables["r"]}
    named = ((name.decode(), record) for name, record in tables["t"])
    state.tasks = {name: cells.open(name, record, f"task {name}") for name, record in named}


def _rounds(raw: bytes) -> tuple[str, tuple[str, ...]]:
    where, _, rest = raw.partition(b"\x1e")
    names = []
    while rest:
        size, _, rest = rest.partition(b":")
        names.append(rest[: int(size)].decode())
        rest = rest[int(size) :]
    return where.decode(), tuple(names)


def _values(
    state: SessionState, fields: dict[bytes, bytes], lists: Sequence[list[bytes]], cells: Cells
) -> None:
    bundles: dict[str, dict[str, Any]] = {}
    for field, data in fields.items():
        if field[:1] == b"=":
            name, number = field[1:].decode(), referred(data)
            if number and number not in bundles:
                bundles[number] = unpack_bundle(number, fields[b"*" + number.encode()], cells)
            cell = Live(bundles[number][name]) if number else cells.unpack(name, data)
            state.values[name] = (cell, int(fields[b"#" + field[1:]].partition(b"_")[0]))
    for raw, *items in lists:
        name = raw.decode()
        state.appended[name] = [cells.unpack(name, item) for item in items]


# --- writing ---------------------------------------------------------------------------


def write_state(
    link: RedisLink,
    state: SessionState,
    cells: Cells,
    facts: Mapping[str, str | bytes],
    *,
    verb: str,
    seen: str = "",
    flags: str = "",
    share: Share = dict.fromkeys,  # each name alone
    listed: Sequence[str] = (),
) -> int:
    """Make a session of a state (`create`), or put it in the place of what there is (`rewind`); its epoch.

    `again`: in the place of one that is still what was `seen`. `share` says which live values have objects in
    common; `listed` the lists that it is on then.
    """
    key, stage = f"{keys_of(state.session)}c", uuid.uuid4().hex
    hashes, sets = _as_tables(state, cells, stage, share)
    lists = {name: [(cells.pack(name, item),) for item in items] for name, items in state.appended.items()}
    names = _stage(link, key, stage, hashes, sets, lists)
    more = (
        ("m" if state.errors or state.skipped else "")
        + ("a" if state.appended else "")
        + ("b" if any(field[0] == "*" for field in hashes["v"]) else "")
        + ("t" if state.tasks else "")
        + ("d" if state.delayed else "")
        + ("r" if state.rounds else "")
    )
    line = [
        state.status, state.sequence, state.steps, state.next_key, state.next_claim, state.next_order,
        "" if state.max_steps is None else state.max_steps, "" if state.cap is None else state.cap,
        flags + more, ",".join(sorted({spec.queue for spec in state.specs.values()})), len(state.claimed),
    ]  # fmt: skip
    cold: dict[str, str | bytes] = {"starts": json.dumps(state.starts), "reason": state.reason}
    cold |= {**facts, "makes": str(len(state.tasks)), **({"run": str(state.run)} if state.run > 1 else {})}
    if state.rng is not None:
        cold["rng"] = cells.pack("rng", state.rng, "rng")
    pairs = [item for pair in cold.items() for item in pair]
    text = "|".join(map(str, line)) + "|"
    words = [verb, text, state.epoch, stage, seen, len(names), *names, *pairs]
    try:
        reply = link.script(_REPLACE)([key, *listed], words)
    except KeyTaken as error:
        raise wrong_keys(link, state.session, listed) from error
    if reply[0] in _REFUSALS:
        raise refused(state.session, *reply)
    return int(reply[1])


def refused(session: str, why: bytes, *owner: bytes) -> SessionError:
    """Return what to raise where the script has not replaced the tables."""
    kind, words, hint = _REFUSALS[why]
    ids = {"session": session, **({"owner": owner[0].decode()} if owner else {})}
    return kind(words.format(**ids), hint=hint, **ids)


_REFUSALS: dict[bytes, tuple[type[SessionError], str, str]] = {
    b"exists": (SessionExists, "There is a session {session} already.", "Use another id."),
    b"changed": (
        SessionExists, "Session {session} was run again or changed by another process; nothing is done here.",
        "Look at it: graflow-ckpt status. Its next run can begin once it is finished.",
    ),
    b"expired": (
        SessionError, f"Writing session {{session}} took longer than {_STAGED} s; nothing was changed.",
        "Try again.",
    ),
    b"busy": (
        SessionBusy, "Session {session} has an owner that is working: {owner}.",
        "Pause it and wait until its workers have left it, or fork it.",
    ),
}  # fmt: skip
"""The class, why, the remedy."""


def _stage(
    link: RedisLink, key: str, stage: str, hashes: Mapping[str, dict[Any, Any]],
    sets: Mapping[str, dict[Any, float]], lists: Mapping[str, list[tuple[bytes]]],
) -> list[str]:  # fmt: skip
    """Write every table page by page, each page with its expiry: a writer may die at any moment."""
    put = link.script(_STAGE)
    tables: list[tuple[str, str, Iterable[Sequence[Arg]]]] = [
        *(("HSET", name, table.items()) for name, table in hashes.items()),
        *(
            ("ZADD", name, ((score, member) for member, score in table.items()))
            for name, table in sets.items()
        ),
        *(("RPUSH", f"a:{name}", items) for name, items in lists.items()),
    ]
    names = []
    for command, name, rows in tables:
        page: list[Arg] = []
        for page in _pages(rows):
            put([key], [command, f"{stage}:{name}", _STAGED, *page])
        if page:  # an empty table has no key
            names.append(name)
    return names


def _pages(rows: Iterable[Sequence[Arg]]) -> Iterator[list[Arg]]:
    page: list[Arg] = []
    items = size = 0
    for row in rows:
        page += row
        items += 1
        size += sum(len(field) for field in row if isinstance(field, bytes | str))
        if items == _PAGE or size > _BYTES:
            yield page
            page, items, size = [], 0, 0
    if page:
        yield page


def _as_tables(
    state: SessionState, cells: Cells, stage: str, share: Share
) -> tuple[dict[str, dict[Any, Any]], dict[str, dict[Any, float]]]:
    raw = {key: spec_bytes(spec, cells) for key, spec in state.specs.items()}
    retried = {
        spec.task_id for key, spec in state.specs.items() if spec.retry_count and key not in state.dead
    }
    token = f"!{uuid.uuid4().hex}".encode()  # no worker holds these claims: reopening releases them
    hashes: dict[str, dict[Any, Any]] = {
        "c": {k: b"%d\x1f%b\x1f%b" % (n, token, raw[k]) for k, n in state.claimed.items()},
        "dead": {
            k: b"%d\x1e%d\x1e%b%b" % (at, len(error.encode()), error.encode(), raw[k])
            for at, (k, error) in enumerate(state.dead.items())
        },
        "g": {name: " ".join(map(str, gate.facts()[:5])) + gate.toward for name, gate in state.gates.items()},
        "sk": dict(state.skipped),
        "pa": dict(state.passed),
        "er": {name: ("r" if name in retried else "f") + error for name, error in state.errors.items()},
        "n": dict(state.counts),
        "r": {
            key: where + "\x1e" + "".join(f"{len(name.encode())}:{name}" for name in names)
            for key, (where, names) in state.rounds.items()
        },
        "t": {name: _sealed(name, record, cells) for name, record in state.tasks.items()},
        "v": {},
        "h": {f"m:{at}": f"{stage} {name}" for at, name in enumerate(state.tasks, 1)},
    }
    for name, (_, version) in state.values.items():
        hashes["v"]["#" + name] = f"{version}_{stage}"  # of this writing and of no other
    hashes["v"] |= _cells_of(state, cells, share)
    sets: dict[str, dict[Any, float]] = {"done": dict(state.completed), "dl": {}}
    for due, key in state.delayed:
        sets["dl"][raw[key]] = due
    for negative, order, key in state.ready:
        sets.setdefault(f"q:{state.specs[key].queue}", {})[raw[key]] = order + negative * PRIORITY
    return hashes, sets


def _cells_of(state: SessionState, cells: Cells, share: Share) -> dict[str, bytes]:
    """Return the values, and the bundles of those that share."""
    live = {name: [cell.value] for name, (cell, _) in state.values.items() if isinstance(cell, Live)}
    fields: dict[str, bytes] = {}
    for names in share(live):
        if len(names) > 1:
            number = new_id()
            fields |= {"=" + name: reference(number) for name in names}
            fields[f"*{number}"] = pack_bundle(number, {name: live[name][0] for name in names}, cells)
            fields[f"~{number}"] = b"".join(b"%d:%b" % (len(name.encode()), name.encode()) for name in names)
    return {f"={n}": cells.pack(n, c) for n, (c, _) in state.values.items() if f"={n}" not in fields} | fields


def spec_bytes(spec: TaskSpec, cells: Cells) -> bytes:
    """Return the bytes of a spec in a queue."""
    due = repr(spec.not_before) if spec.not_before else "0"
    head = (
        spec.key, spec.task_id, spec.priority, spec.retry_count, spec.max_retries, spec.execution_strategy,
        spec.cycle, due, spec.queue, spec.crashes,
    )  # fmt: skip
    data = b"" if spec.task_data is None else cells.pack("data", spec.task_data, f"data {spec.task_id}")
    return "\x1f".join(map(str, head)).encode() + b"\x1f" + data


def _sealed(name: str, record: Cell, cells: Cells) -> bytes:
    assert isinstance(record, bytes)  # a pickle of a task that was made at run time
    return cells.seal(record, f"task {name}")


# --- freezing --------------------------------------------------------------------------


@contextmanager
def frozen(link: RedisLink, session: str, seconds: float = 60.0) -> Iterator[None]:
    """Freeze a session: commits of others wait, at most so many seconds, should this process die."""
    freeze, key = link.script(_FREEZE), f"{keys_of(session)}c"
    # of this process alone: if it dies, the session need not wait for its time
    maker = f"{uuid.uuid4().hex} {json.dumps(asdict(myself()))}"
    try:  # also if the reply is lost: it may be frozen then
        reply = freeze([key], [maker, seconds, ""])
        if reply[0] == b"gone":
            raise gone(link, session)
        if reply[0] == b"busy":
            raise SessionBusy(
                f"Session {session} is frozen by another process.",
                hint="Try again in a moment.",
                session=session,
                owner=reply[1].decode(),
            )
        yield
    finally:
        freeze([key], [maker, 0, ""])


# --- page by page ----------------------------------------------------------------------


def read_paged(
    link: RedisLink, session: str, cells: Cells, *, page: int = PAGE, seconds: float = FREEZE
) -> SessionState:
    """Return the session as of one moment, values included; raise SessionBusy if that took too long."""
    prefix = keys_of(session)
    with frozen(link, session, seconds), translated(link.address), readable(session, link.address):
        client: Any = link.client
        line: bytes = client.hget(f"{prefix}c", "c")
        counters = parse_line(session, line)
        tables = {name: list(_table(client, f"{prefix}{name}", page)) for name in TABLES}
        names = [name for name in counters["queues"].split(",") if name]
        queues = [[x for pair in _sorted(client, f"{prefix}q:{n}", page) for x in pair] for n in names]
        values = dict(_hash(client, f"{prefix}v", min(page, FEW)))
        named = [field[1:] for field in values if field[:1] == b"="] if "a" in counters["flags"] else []
        lists = list(_lists(client, prefix, named, page))
        now = client.hget(f"{prefix}c", "c")
    if now is None:
        raise gone(link, session)
    if parse_line(session, now)["sequence"] != counters["sequence"]:
        raise SessionBusy(
            f"Session {session} changed while it was read: that took longer than {seconds:g} s.",
            hint="Pause it and try again, or keep its large values elsewhere.",
            session=session,
        )
    with readable(session, link.address):
        return state_of(session, line, tables, queues, values, lists, cells)


def _table(client: Any, key: str, page: int) -> Iterator[tuple[bytes, bytes]]:
    sorted_set = key.endswith((":dl", ":done"))
    return _sorted(client, key, page) if sorted_set else _hash(client, key, page)


def _hash(client: Any, key: str, page: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the fields of a hash, each once: no process writes it meanwhile, but a scan may repeat one."""
    found: dict[bytes, bytes] = {}
    cursor = 0
    while True:
        cursor, fields = client.hscan(key, cursor, count=page)
        found |= fields
        if not cursor:
            return iter(found.items())


def _sorted(client: Any, key: str, page: int) -> Iterator[tuple[bytes, bytes]]:
    start = 0
    while members := client.zrange(key, start, start + page - 1, withscores=True):
        yield from ((member, b"%.17g" % score) for member, score in members)
        start += page


def _lists(client: Any, prefix: str, names: list[bytes], page: int) -> Iterator[list[bytes]]:
    """Yield what was appended, where something was; most values have nothing."""
    for start in range(0, len(names), FEW):
        some = names[start : start + FEW]
        pipe = client.pipeline(transaction=False)
        for name in some:
            pipe.lrange(prefix.encode() + b"a:" + name, 0, page - 1)
        for name, items in zip(some, pipe.execute(), strict=True):
            key, more = prefix.encode() + b"a:" + name, items
            while len(more) == page:
                more = client.lrange(key, len(items), len(items) + page - 1)
                items = items + more
            if items:
                yield [name, *items]
