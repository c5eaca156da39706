"""The output of a command: a table on a terminal, plain columns on a pipe, JSON if asked.

Results go to stdout, everything said about them to stderr. Text from checkpoints is shown
without control characters, so that a name cannot move the cursor. Long work has a bar for the user who
watches on a terminal. Not here: live progress.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from itertools import count
from typing import Any, Literal, TextIO

import click

from graflow_ckpt.core.errors import BadAddress, BadSessionId, BadSetting, GraflowError, InDoubt, NoKey

Document = dict[str, Any]  # JSON as written

_FOLDED = 14  # characters to which a column may be narrowed
_MISTYPED = (BadSessionId, BadSetting, BadAddress, NoKey)  # the same again will not help

_COLORS = {
    "completed": "green", "good": "green", "reuse": "green", "ok": "green",
    "running": "cyan", "busy": "cyan", "run": "cyan", "new": "cyan",
    "interrupted": "yellow", "stopped": "yellow", "stalled": "yellow", "run again": "yellow",
    "warning": "yellow", "paused": "yellow", "init": "yellow", "closing": "yellow", "draining": "yellow",
    "none": "yellow", "failing": "red",
    "failed": "red", "bad": "red", "changed": "red", "orphaned": "red", "cancelled": "red",
}  # fmt: skip


Told = Callable[[int, int | None], None]
"""How much is done, of how much; None: it is not known."""


class Manner:
    """One per call of the command line; the common options set it."""

    def __init__(self) -> None:
        self.json = False
        self.traceback = False
        self.flags: dict[str, Any] = {}  # settings that are typed, by name; Any: not checked yet
        self.config: str | None = None  # and the file that has others
        self.documents: TextIO | None = None  # where JSON goes if stdout belongs to a program

    # --- results -----------------------------------------------------------------------

    def result(self, document: Any, *notes: str, lines: Iterable[str] = (), out: str = "") -> None:
        """Write a document if JSON is asked for; else notes about it, lines of text, and `out` as it is."""
        if self.json:
            self.document(document)
            return
        for note in notes:
            self.note(note)
        for line in lines:
            self.say(line)
        if out:
            click.echo(out)

    def listing(
        self,
        documents: Any,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        *notes: str,
        right: Iterable[str] = (),
        none: str = "",
    ) -> None:
        """Write documents if JSON is asked for; else a table and notes about it, or what to say of none."""
        if rows and not self.json:
            self.table(columns, rows, right=right)
        self.result(documents, *((none,) if none and not rows else notes))

    def document(self, document: Any) -> None:
        """Write one JSON document on one line, or over several on a terminal."""
        out = self.documents or sys.stdout
        person = self.documents is None and out.isatty()
        out.write(json.dumps(document, default=jsonable, indent=2 if person else None) + "\n")
        out.flush()

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Iterable[str] = ()
    ) -> None:
        """Print rows of text; columns in `right` are numbers."""
        texts = [["" if cell is None else clean(str(cell)) for cell in row] for row in rows]
        if sys.stdout.isatty() and _pretty(columns, texts, set(right)):
            return
        sizes = [max(len(c), *(len(row[i]) for row in texts), 0) for i, c in enumerate(columns)]
        for row in [[c.upper() for c in columns], *texts]:
            cells = [
                cell.rjust(size) if name in right else cell.ljust(size)
                for name, cell, size in zip(columns, row, sizes, strict=True)
            ]
            click.echo("  ".join(cells).rstrip())

    def say(self, text: str) -> None:
        click.echo(clean(text))

    def note(self, text: str) -> None:
        """Print a note on stderr, beside the result."""
        click.echo(f"graflow-ckpt: {clean(text)}", err=True)

    def ask(self, question: str) -> None:
        """Return if the user says yes; else end the command."""
        try:
            said = click.confirm(question, err=True)
        except click.Abort:
            if sys.stdin.isatty():
                raise
            click.echo(err=True)
            raise click.UsageError(
                "Aborted: confirmation needed, but there is no terminal. Pass --yes to confirm."
            ) from None
        if not said:
            raise click.Abort

    # --- long work ---------------------------------------------------------------------

    @property
    def watched(self) -> bool:
        """True if a user looks on while something is done."""
        return not self.json and sys.stderr.isatty()

    @contextmanager
    def bar(self, doing: str) -> Iterator[Told]:
        """Show a bar while the block runs, to a user who looks on."""
        if not self.watched:
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(doing, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    @contextmanager
    def counter(self, doing: str, total: int | None = None) -> Iterator[Callable[[object], None]]:
        """Show a bar that counts: what it yields is called with each that is done."""
        done = count(1)
        with self.bar(doing) as told:
            told(0, total)
            yield lambda _: told(next(done), total)

    # --- errors ------------------------------------------------------------------------

    def usage(self, error: click.ClickException) -> None:
        if self.json:
            self.document({"error": "Usage", "message": error.format_message()})
        else:
            error.show()

    def failed(self, error: GraflowError) -> int:
        """Print one clear message and what to do; return the exit status."""
        if self.traceback:
            import traceback

            traceback.print_exception(error)
        notes = list(getattr(error, "__notes__", ()))
        if self.json:
            told = {"message": error.message, "hint": error.hint, "notes": notes}
            self.document({**error.ids, "error": type(error).__name__, **told})
        elif not self.traceback:
            click.echo(f"graflow-ckpt: {click.style('error:', fg='red')} {clean(error.message)}", err=True)
            for line in (error.hint, *notes):
                if line:
                    click.echo(f"  {clean(line)}", err=True)
        if isinstance(error, InDoubt):
            return 3
        return 2 if isinstance(error, _MISTYPED) else 1


def style_of(text: str) -> str:
    """Return the colour of a word that says what state something is in."""
    return _COLORS.get(text, "")


def clean(text: str) -> str:
    """Remove control characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def jsonable(value: Any) -> Any:
    """Convert what JSON does not know, in an error's ids."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _pretty(columns: Sequence[str], texts: Sequence[Sequence[str]], right: set[str]) -> bool:
    """Print a table; return False if there was no room for it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    sizes = {name: max(len(name), *(len(row[i]) for row in texts), 0) for i, name in enumerate(columns)}
    table, folded = Table(box=box.SIMPLE_HEAD, pad_edge=False), set(sizes)
    if sum(sizes.values()) + 3 * len(sizes) > console.width:
        for i, name in enumerate(columns):
            if name in right and all(row[i] in ("", "0") for row in texts):
                del sizes[name]  # it says nothing
        gap, folded = _folded(sizes, right, console.width)
        if not gap:
            return False
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for name in sizes:
        justify: Literal["right", "left"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name not in folded)
    for row in texts:
        cells = [cell for name, cell in zip(columns, row, strict=True) if name in sizes]
        table.add_row(*(Text(cell, style=style_of(cell)) for cell in cells))
    console.print(table)
    return True


def _folded(sizes: Mapping[str, int], right: set[str], room: int) -> tuple[int, set[str]]:
    """Return how far apart columns are, and which give way: the last one first, then the widest. An id or
    path that is broken over lines cannot be copied. 0: no room even so, and the terminal breaks lines."""
    texts = sorted((name for name in sizes if name not in {"path", *right}), key=lambda name: -sizes[name])
    last = next((name for name in reversed([*sizes]) if name not in right), None)
    for gap in (2, 1):
        needed = sum(sizes.values()) + gap * (len(sizes) - 1)
        folded: set[str] = set()
        for name in sorted(texts, key=lambda name: name != last):
            if needed > room and sizes[name] > _FOLDED:
                folded.add(name)
                needed -= sizes[name] - _FOLDED
        if needed <= room:
            return gap, folded
    return 0, set()
