"""Bars: how far long work is, for somebody who watches on a terminal; elsewhere nothing is shown.

What a command says is another matter (manner.py), and so is a session that runs (progress.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

Told = Callable[[int, int | None], None]
"""How much is done, of how much; None: nobody knows."""


@contextmanager
def bar(doing: str, *, show: bool = True) -> Iterator[Told]:
    """A bar while the block runs."""
    if not show or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def counter(doing: str, total: int | None = None, *, show: bool = True) -> Iterator[Callable[[object], None]]:
    """The same for one after the other: what it gives is called with each that is done."""
    count = 0
    with bar(doing, show=show) as told:

        def seen(_: object) -> None:
            nonlocal count
            count += 1
            told(count, total)

        told(0, total)
        yield seen


def along(items: Sequence[T], doing: str, *, show: bool) -> Iterator[T]:
    """The items, with a bar for those that are done."""
    with counter(doing, len(items), show=show) as seen:
        for item in items:
            yield item
            seen(item)
