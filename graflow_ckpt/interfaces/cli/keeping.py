"""Keeping: from what somebody has typed to a retention.

--older-than, --keep, --budget        kept if all of those that are given keep it
--best, --keep-every                  and what one of these keeps
the last successful run of a workflow is kept unless --no-keep-successful
none of them: the default of workflows
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_, or_

import click

from graflow_ckpt.checkpoint.retention import (
    DEFAULT,
    BestOf,
    KeepEvery,
    KeepFor,
    KeepLast,
    KeepWithin,
    LastSuccessful,
    Per,
    Retention,
)

_BEST = re.compile(r"(?P<metric>.+?)(?::(?P<n>[1-9]\d*))?(?::(?P<mode>min|max))?\Z")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?B?)\Z")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}


def parse_best(
    ctx: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> tuple[tuple[str, int, str], ...]:
    """`loss`, `loss:3`, `accuracy:3:max`."""
    found = []
    for item in given:
        match = _BEST.match(item)
        if match is None:
            raise click.BadParameter(f"{item!r} is not METRIC, METRIC:N or METRIC:N:max.", ctx, parameter)
        found.append((match["metric"], int(match["n"] or 1), match["mode"] or "min"))
    return tuple(found)


def parse_bytes(ctx: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """`500MB`, `10 GB`, `1.5G`: powers of 1000, as sizes are shown."""
    if given is None:
        return None
    match = _BYTES.match(given.strip())
    size = round(float(match[1]) * 1000.0 ** _POWERS[match[2].rstrip("B")]) if match else 0
    if size < 1:
        raise click.BadParameter(f"{given!r} is no size: 500MB, 10GB.", ctx, parameter)
    return size


def retention_of(
    *,
    older_than: float | None,
    keep: int | None,
    budget: int | None,
    best: Sequence[tuple[str, int, str]],
    keep_every: int | None,
    per: Per,
    keep_successful: bool,
) -> Retention:
    """What the options say together."""
    limits: list[Retention] = []
    if older_than is not None:
        limits.append(KeepFor(seconds=older_than))
    if keep is not None:
        limits.append(KeepLast(keep, per=per))
    if budget is not None:
        limits.append(KeepWithin(kb=budget / 1000))
    besides: list[Retention] = [BestOf(metric, n, "max" if mode == "max" else "min", per=per)
                                for metric, n, mode in best]  # fmt: skip
    if keep_every is not None:
        besides.append(KeepEvery(keep_every))
    if not limits and not besides:
        limits = [KeepLast(10, per=per), KeepFor(days=7)]
        if keep_successful and per == "session":
            return DEFAULT
    if keep_successful:
        besides.append(LastSuccessful())
    return reduce(or_, [*([reduce(and_, limits)] if limits else []), *besides])
