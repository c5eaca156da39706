"""The tables of a session in Redis as a SessionState, and back.

    c  one line of counters      h  cold facts          q:QUEUE dl cl dead  the specs
    g  gates                     done sk pa er n        what became of the tasks
    v a:NAME t                   values, what was appended to them, tasks made at run time

`read_state` takes all of it in one transaction. `write_state` stages the tables beside the old ones
and has them replaced in one script, so that a session is the old one or the new one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from graflow_ckpt.core.errors import NoSession, SessionBusy, SessionExists
from graflow_ckpt.core.facts import TaskSpec
from graflow_ckpt.core.gate import Gate
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.values import Cell
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.ops import Cells, spec_of
from graflow_ckpt.sessions.redis import keys_of, source

PRIORITY = 2**33
"""The score of a ready spec is order - priority * PRIORITY; both are exact below 2**53."""

FIELDS = ("status", "sequence", "steps", "key", "claim", "order", "max_steps", "cap", "flags", "queues")
_PAGE = 1000
_STAGED = 3600  # seconds until what a dead writer has staged is gone
_REPLACE = source("replace")


def parse_line(line: Any) -> dict[str, str]:
    """The counters of a session."""
    return dict(zip(FIELDS, line.decode().split("|"), strict=False))


def read_state(link: RedisLink, session: str, cells: Cells, *, values: bool = True) -> SessionState:
    """The session as of one moment; without `values` only what is known of its tasks."""
    prefix = keys_of(session)
    client = link.route.client_for(f"{prefix}c")
    line = client.get(f"{prefix}c")
    if line is None:
        raise NoSession(f"There is no session {session} at {link.address}.", session=session)
    queues = [name for name in parse_line(line)["queues"].split(",") if name]
    pipe = client.pipeline()
    for name in ("c", *_TABLES):
        _READ[name](pipe, f"{prefix}{name}")
    for queue in queues:
        pipe.zrange(f"{prefix}q:{queue}", 0, -1, withscores=True)
    if values:
        pipe.hgetall(f"{prefix}v")
    line, *found = pipe.execute()
    tables: dict[str, Any] = dict(zip(_TABLES, found, strict=False))
    state = _counters(session, parse_line(line), tables["h"], cells)
    _specs(state, tables, found[len(_TABLES) : len(_TABLES) + len(queues)], cells)
    _tasks(state, tables, cells)
    if values:
        _values(state, link, prefix, found[-1], cells)
    return state


_TABLES = ("h", "dl", "cl", "dead", "g", "done", "sk", "pa", "er", "n", "t")
_READ: dict[str, Any] = dict.fromkeys(_TABLES, lambda pipe, key: pipe.hgetall(key))
_READ["c"] = lambda pipe, key: pipe.get(key)
_READ["dl"] = _READ["done"] = lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True)


def _counters(session: str, c: dict[str, str], h: dict[bytes, bytes], cells: Cells) -> SessionState:
    state = SessionState(session, json.loads(h.get(b"starts", b"[]")), _int(c["max_steps"]))
    state.cap = _int(c["cap"])
    state.status, state.reason = c["status"], h.get(b"reason", b"").decode()
    state.sequence, state.steps = int(c["sequence"]), int(c["steps"])
    state.next_key, state.next_claim, state.next_order = int(c["key"]), int(c["claim"]), int(c["order"])
    state.epoch = int(h.get(b"epoch", 0))
    state.rng = cells.unpack("rng", h[b"rng"]) if b"rng" in h else None
    return state


def _int(text: str) -> int | None:
    return int(text) if text else None


def _specs(state: SessionState, tables: dict[str, Any], queues: list[Any], cells: Cells) -> None:
    for queue in queues:
        for member, score in queue:
            spec = _keep(state, member, cells)
            state.ready.append((-spec.priority, int(score) + spec.priority * PRIORITY, spec.key))
    for member, due in tables["dl"]:
        state.delayed.append((due, _keep(state, member, cells).key))
    state.ready.sort()
    state.delayed.sort()
    for record in tables["cl"].values():
        number, _, spec = record.split(b"\x1f", 2)
        state.claimed[_keep(state, spec, cells).key] = int(number)
    dead = []
    for key, record in tables["dead"].items():
        at, error, spec = record.split(b"\x1e", 2)
        _keep(state, spec, cells)
        dead.append((int(at), int(key), error.decode()))
    state.dead = {key: error for _, key, error in sorted(dead)}


def _keep(state: SessionState, raw: bytes, cells: Cells) -> TaskSpec:
    spec = spec_of(raw, cells)
    state.specs[spec.key] = spec
    return spec


def _tasks(state: SessionState, tables: dict[str, Any], cells: Cells) -> None:
    for name, raw in tables["g"].items():
        size, need, arrived, ok, fired = map(int, raw.split())
        state.gates[name.decode()] = Gate(size, need, arrived, ok, bool(fired))
    state.completed = {name.decode(): int(step) for name, step in tables["done"]}
    state.skipped = {name.decode(): int(step) for name, step in tables["sk"].items()}
    state.passed = {name.decode(): int(step) for name, step in tables["pa"].items()}
    state.errors = {name.decode(): error[1:].decode() for name, error in tables["er"].items()}
    state.counts = {name.decode(): int(count) for name, count in tables["n"].items()}
    state.tasks = {name.decode(): cells.open(name.decode(), record) for name, record in tables["t"].items()}


def _values(
    state: SessionState, link: RedisLink, prefix: str, fields: dict[bytes, bytes], cells: Cells
) -> None:
    names = [field[1:].decode() for field in fields if field[:1] == b"="]
    for name in names:
        raw = name.encode()
        state.values[name] = (cells.unpack(name, fields[b"=" + raw]), int(fields[b"#" + raw]))
    for start in range(0, len(names), _PAGE):
        page = names[start : start + _PAGE]
        pipe = link.route.client_for(f"{prefix}c").pipeline()
        for name in page:
            pipe.lrange(f"{prefix}a:{name}", 0, -1)
        for name, items in zip(page, pipe.execute(), strict=True):
            if items:
                state.appended[name] = [cells.unpack(name, item) for item in items]


# --- writing ---------------------------------------------------------------------------


def write_state(
    link: RedisLink,
    state: SessionState,
    cells: Cells,
    facts: Mapping[str, str | bytes],
    *,
    verb: str,
    flags: str = "",
) -> int:
    """Make a session of a state (`create`), or put it in the place of what there is (`rewind`); its epoch."""
    prefix = keys_of(state.session)
    stage = f"{prefix}~"
    names = _stage(link, stage, state, cells)
    more = (
        ("m" if state.errors or state.skipped else "")
        + ("a" if state.appended else "")
        + ("t" if state.tasks else "")
    )
    line = [
        state.status, state.sequence, state.steps, state.next_key, state.next_claim, state.next_order,
        "" if state.max_steps is None else state.max_steps, "" if state.cap is None else state.cap,
        flags + more, ",".join(sorted({spec.queue for spec in state.specs.values()})),
    ]  # fmt: skip
    cold: dict[str, str | bytes] = {"starts": json.dumps(state.starts), "reason": state.reason, **facts}
    if state.rng is not None:
        cold["rng"] = cells.pack("rng", state.rng)
    pairs = [item for pair in cold.items() for item in pair]
    text = "|".join(map(str, line)) + "|"
    reply = link.script(_REPLACE)([f"{prefix}c"], [verb, text, len(names), *names, *pairs])
    if reply[0] == b"exists":
        raise SessionExists(
            f"There is a session {state.session} already.", hint="Use another id.", session=state.session
        )
    if reply[0] == b"busy":
        raise SessionBusy(
            f"Somebody works on session {state.session}: {reply[1].decode()}.",
            hint="Pause it and wait until its workers have left it, or fork it.",
            session=state.session,
            owner=reply[1].decode(),
        )
    return int(reply[1])


def _stage(link: RedisLink, stage: str, state: SessionState, cells: Cells) -> list[str]:
    hashes, sets = _as_tables(state, cells)
    names = [*hashes, *sets, *(f"a:{name}" for name in state.appended)]
    pipe = link.route.client_for(f"{stage}c").pipeline(transaction=False)
    for name in names:
        pipe.delete(stage + name)
    for name, table in hashes.items():
        for page in _pages(table.items()):
            pipe.hset(stage + name, mapping=dict(page))
    for name, scores in sets.items():
        for page in _pages(scores.items()):
            pipe.zadd(stage + name, dict(page))
    for name, items in state.appended.items():
        for part in _pages(items):
            pipe.rpush(f"{stage}a:{name}", *[cells.pack(name, item) for item in part])
    for name in names:
        pipe.expire(stage + name, _STAGED)
    pipe.execute()
    return names


def _pages(items: Iterable[Any]) -> Iterable[list[Any]]:
    every = list(items)
    return (every[start : start + _PAGE] for start in range(0, len(every), _PAGE))


def _as_tables(
    state: SessionState, cells: Cells
) -> tuple[dict[str, dict[Any, Any]], dict[str, dict[Any, float]]]:
    raw = {key: spec_bytes(spec, cells) for key, spec in state.specs.items()}
    token = f"!{uuid.uuid4().hex}".encode()  # nobody holds these claims: whoever reopens releases them
    hashes: dict[str, dict[Any, Any]] = {
        "cl": {k: b"%d\x1f%b\x1f%b" % (n, token, raw[k]) for k, n in state.claimed.items()},
        "dead": {
            k: b"%d\x1e%b\x1e%b" % (at, error.replace("\x1e", " ").encode(), raw[k])
            for at, (k, error) in enumerate(state.dead.items())
        },
        "g": {name: " ".join(map(str, gate.facts())) for name, gate in state.gates.items()},
        "sk": dict(state.skipped),
        "pa": dict(state.passed),
        "er": {
            name: ("f" if state.gave_nothing(name) else "r") + error for name, error in state.errors.items()
        },
        "n": dict(state.counts),
        "t": {name: _sealed(record, cells) for name, record in state.tasks.items()},
        "v": {},
    }
    for name, (cell, version) in state.values.items():
        hashes["v"]["=" + name] = cells.pack(name, cell)
        hashes["v"]["#" + name] = version
    sets: dict[str, dict[Any, float]] = {"done": dict(state.completed), "dl": {}}
    for due, key in state.delayed:
        sets["dl"][raw[key]] = due
    for negative, order, key in state.ready:
        sets.setdefault(f"q:{state.specs[key].queue}", {})[raw[key]] = order + negative * PRIORITY
    return hashes, sets


def spec_bytes(spec: TaskSpec, cells: Cells) -> bytes:
    """A spec as it stands in a queue."""
    due = repr(spec.not_before) if spec.not_before else "0"
    head = (
        spec.key, spec.task_id, spec.priority, spec.retry_count, spec.max_retries, spec.execution_strategy,
        spec.cycle, due, spec.queue, spec.crashes,
    )  # fmt: skip
    data = b"" if spec.task_data is None else cells.pack("data", spec.task_data)
    return "\x1f".join(map(str, head)).encode() + b"\x1f" + data


def _sealed(record: Cell, cells: Cells) -> bytes:
    assert isinstance(record, bytes)  # a pickle of a task that was made at run time
    return cells.seal(record)
