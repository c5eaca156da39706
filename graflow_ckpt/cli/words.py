"""Words: strings of the command line as objects, and facts as words for users.

Strings are parsed here once; behind it there are policies, numbers and pairs.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Any

import click

from graflow_ckpt.cli import lazy
from graflow_ckpt.config.settings import UNITS
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.policy import EitherPolicy, EveryN, EverySeconds, Policy
from graflow_ckpt.links.addresses import SCHEMES, parse

_PERIOD = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?\Z")
_ANSWERS = ("rerun", "skip", "fail")


def parse_inputs(
    ctx: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> dict[str, Any]:  # Any: whatever JSON can say
    """Parse `k=v`: JSON if it parses, else text."""
    inputs: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE.")
        if name in inputs:
            raise click.BadParameter(f"{name!r} is given twice.")
        try:
            inputs[name] = json.loads(text)
        except ValueError:
            inputs[name] = text
    return inputs


def parse_every(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> Policy | None:
    """Parse `10` as steps, `30s` as time; several combine."""
    try:
        return policy_of(given)
    except GraphError as error:
        raise click.BadParameter(error.message) from error


def _policy(item: str) -> Policy:
    match = _PERIOD.match(item.strip())
    if match is None or (match[2] is None and "." in item):
        raise GraphError(f"{item!r} is neither a number of steps (10) nor a time (30s, 5m).")
    return EveryN(int(match[1])) if match[2] is None else EverySeconds(float(match[1]) * UNITS[match[2]])


def policy_of(items: Sequence[str]) -> Policy | None:
    """Return the policy that these are together, such as the words of a `policy_text`."""
    return reduce(or_, map(_policy, items)) if items else None


def policy_text(policy: Policy) -> str:
    """Return a policy that `--every` has made, as it could be typed again."""
    match policy:
        case EveryN(steps):
            return str(steps)
        case EverySeconds(seconds):
            return f"{round(seconds * 1000)}ms"
        case EitherPolicy(members):
            return " ".join(policy_text(member) for member in members)
    raise TypeError(f"{policy!r} cannot be typed")


def parse_period(ctx: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """Parse `90`, `90s`, `5m`, in seconds."""
    if given is None:
        return None
    match = _PERIOD.match(given.strip())
    if match is None:
        raise click.BadParameter(f"{given!r} is no time: 90, 90s, 5m, 2h, 7d.")
    return float(match[1]) * UNITS[match[2] or "s"]


def parse_age(ctx: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """Parse a time that needs a unit: where something is deleted, 7 may not mean 7 seconds."""
    match = _PERIOD.match(given.strip()) if given is not None else None
    if given is not None and (match is None or match[2] is None):
        why = f"{given!r} is not a valid duration: expected a number and a unit, such as 90s or 7d."
        raise click.BadParameter(why)
    return parse_period(ctx, parameter, given)


def parse_store(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Return a folder as it is; an address without its password, which this process remembers."""
    if given is not None and not given.strip():  # of a variable that is not set, say
        raise click.BadParameter(f"{given!r} is no place: give a folder or an address.")
    if given is not None and _is_database(given):
        raise click.BadParameter(f"{given} is a database, and its address is sqlite:///{given}.")
    if given is None or "://" not in given or given.lower().startswith(("file:", "sqlite:")):
        return given
    from urllib.parse import urlencode

    if prefix := lazy.prefixes.prefix_of(given):
        return f"{prefix}{parse_store(ctx, parameter, lazy.prefixes.unwrapped(given))}"
    if lazy.postgres_names.is_postgres(given):
        database = lazy.postgres_names.parse(lazy.postgres_names.divided(given)[0])
        database.remember()
        return str(database)
    if lazy.objects_names.is_objects(given):
        lazy.objects_names.place_of(given).remember()  # refused if there is a secret in it
        return given
    if given.partition("://")[0].lower() not in SCHEMES:
        return given  # what it is, if anything, is known when it is opened
    address = parse(given)
    address.remember()
    return f"{address}?{urlencode(address.options)}" if address.options else str(address)


def _is_database(path: str) -> bool:
    """Return True for a file of SQLite's, where a folder or an address is wanted."""
    try:
        with open(path, "rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except (OSError, ValueError):
        return False


def parse_answers(
    ctx: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Parse `TASK=rerun|skip|fail`."""
    answers = []
    for item in given:
        task, _, answer = item.rpartition("=")
        if not task or answer not in _ANSWERS:
            raise click.BadParameter(f"{item!r} is not TASK=rerun, TASK=skip or TASK=fail.")
        answers.append((task, answer))
    return tuple(answers)


# --- as text -----------------------------------------------------------------------------


def counted(count: int, noun: str) -> str:
    """Return `1 step`, `2 steps`."""
    plural = "es" if noun.endswith("sh") else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{plural}"


def resume_command(session: str, store: str, *more: str) -> str:
    """Return what to type to resume."""
    where = [] if lazy.places.goes_without_saying(store) else ["--store", lazy.stores.as_typed(store)]
    return shlex.join(["graflow-ckpt", "resume", session, *where, *more])


def fleet_command(*what: str) -> str:
    """Return what to type about a session of a fleet; which fleet, its surroundings say."""
    return shlex.join(["graflow-ckpt", *what])


def seconds_since(iso: str, now: datetime | None = None) -> float | None:
    """Return how long ago a checkpoint says that it was made."""
    try:
        made = datetime.fromisoformat(iso)
    except (TypeError, ValueError):
        return None
    if made.tzinfo is None:
        made = made.replace(tzinfo=UTC)
    return max(0.0, ((now or datetime.now(UTC)) - made).total_seconds())


def age(seconds: float | None) -> str:
    """Return `3 s`, `4 min`, `2 h`, `5 d`."""
    if seconds is None:
        return "?"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def listed(names: Sequence[str], most: int) -> str:
    """Return `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def seconds_ago(time_: float) -> float | None:
    """Return how long ago a Unix time was; None if it is not known."""
    return max(0.0, time.time() - time_) if time_ < float("inf") else None


def fields(*pairs: tuple[str, str]) -> Iterator[str]:
    """Yield a line for each value of what is shown of one thing; what says nothing has none."""
    yield from (f"  {name:<11} {value}" for name, value in pairs if value)


def size(count: int | None) -> str:
    """Return `17 B`, `5.7 kB`, `1.2 GB`."""
    if count is None:
        return "?"
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}" if unit != "B" else f"{count} B"
        number /= 1000
    return f"{number:.3g} TB"
