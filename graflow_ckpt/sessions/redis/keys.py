"""The keys of a session in Redis, and the scripts that change them.

c  format, counters, replies, claims   h  cold facts     q:QUEUE dl dead  the specs
g  gates   r  loops          done sk pa er n           what became of the tasks
v a:NAME t                   values, what was appended to them, tasks made at run time
m:N makes (in h)             which task was made as the Nth, and how many were: see engine/shared.py
tok own qt                   tokens: their leases, owners, those that wait for a worker
x:SENDER                     the last reply to a sender without a token, for ten minutes
ledger                       one entry per end, if it is asked for
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from graflow_ckpt.core.errors import KeyTaken
from graflow_ckpt.links.complaints import taken, translated, unknown_format
from graflow_ckpt.links.redis import RedisLink

FORMAT = 3
"""The number of what is described here. A change that a version before would misread raises it."""

AGAIN = 4
"""The same of a session from its second run on: versions before do not know that a run has a number."""

ROUNDS = 5
"""The same of a session in which a round of a loop was committed: versions before would begin it again."""

OLDEST = 2
"""The oldest that is read and worked at, and stays one: it lacks notes of what was made at run time."""

_KNOWN = (FORMAT, AGAIN, ROUNDS, OLDEST)

_TYPES = {
    "hash": "c h dead g r sk pa er n v t own qt",
    "zset": "dl done tok",
    "list": "ledger",
}


def keys_of(session: str) -> str:
    """Return the prefix of all keys of a session."""
    return f"graflow:{{{session}}}:"


def head_of(client: Any, address: str, session: str) -> bytes | None:
    """Return the counters of a session; None if there is none, SchemaUnsupported if its format is unknown."""
    key = f"{keys_of(session)}c"
    with translated(address):
        line, number = client.hmget(key, "c", "format")
    if line is None and number is None:
        return None
    if number not in [b"%d" % known for known in _KNOWN]:
        raise unknown_format(f"{(number or b'1').decode(errors='replace')} {key}", address)
    found: bytes | None = line
    return found


def notes_what_is_made(number: bytes | None) -> bool:
    """Return True if all workers of a session of that format note what they make at run time."""
    return number in (b"%d" % FORMAT, b"%d" % AGAIN, b"%d" % ROUNDS)


def wrong_keys(link: RedisLink, session: str, lists: Sequence[str] = ()) -> KeyTaken:
    """Return the error that names the keys under which something else is kept: a session's, and `lists`."""
    prefix = keys_of(session)
    wanted = {f"{prefix}{name}": kind for kind, names in _TYPES.items() for name in names.split()}
    wanted |= dict.fromkeys(lists, "zset")
    with translated(link.address):
        client: Any = link.client
        for part, kind in (("q", "zset"), ("a", "list")):
            for key in client.scan_iter(match=f"{prefix}{part}:*", count=1000):
                wanted[key.decode()] = kind
        return taken(link.address, wanted, client.type)


# --- scripts ---------------------------------------------------------------------------


def source(name: str, package: str = "graflow_ckpt.sessions.redis") -> str:
    """Return the text of a script, with the parts that it names (--PART--) put in."""
    return whole((files(package) / "scripts" / f"{name}.lua").read_text(encoding="utf-8"))


def whole(text: str) -> str:
    """Return a text with the parts that it names put in."""
    text = re.sub(r"^--([A-Z]+)--$", lambda part: source(part[1].lower()), text, flags=re.MULTILINE)
    text = text.replace("@FORMAT@", str(FORMAT)).replace("@AGAIN@", str(AGAIN))
    return text.replace("@ROUNDS@", str(ROUNDS)).replace("@KNOWN@", f" {' '.join(map(str, _KNOWN))} ")


CREATE = source("create")
CUT = source("cut")
STEP = source("step")
READ = source("read")
START = source("start")
RENEW = source("renew")
