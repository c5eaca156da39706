"""Options that several commands share, and what a shell completes for their arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.manner import Manner

# Any: click's decorators take whatever functions commands are.
F = TypeVar("F", bound=Callable[..., Any])
TAKE_OVER = "Take the session from a living owner; in a folder that process is ended, after a question."


def _manner(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            setattr(manner_of(ctx), name, True)

    return callback


def manner_of(ctx: click.Context) -> Manner:
    found = ctx.find_object(Manner)
    return found if found is not None else ctx.ensure_object(Manner)


def common(function: F) -> F:
    """`--json` and `--traceback`: of every command. What they say stands in its manner."""
    text = "Show where an error of graflow-ckpt comes from."
    return as_json(_flag("--traceback", "traceback", text)(function))


def as_json(function: F) -> F:
    """`--json` alone, for a command that has another `--traceback`."""
    return _flag("--json", "json", "JSON instead of text.")(function)


def _flag(flag: str, name: str, text: str) -> Callable[[F], F]:
    return click.option(
        flag, is_flag=True, is_eager=True, expose_value=False, callback=_manner(name), help=text
    )


def default_store() -> str:
    from graflow_ckpt.stores.places import for_command_line

    return for_command_line()


def store(function: F) -> F:
    """`--store`, with the same default as a program's."""
    return _store_option(words.parse_store, "checkpoints")(function)


def found_store(function: F) -> F:
    """`--store` of a command that looks for something: by default all places used."""
    return _store_option(_parse_store, "checkpoints, then all places used")(function)


def _store_option(callback: Callable[..., Any], shown: str) -> Callable[[F], F]:
    return click.option(
        "--store", default=default_store, show_default=shown, metavar="FOLDER|URL", callback=callback,
        shell_complete=complete_folders,
        help="Where the checkpoints are; also GRAFLOW_CKPT_STORE. sqlite:// is the user's own database.",
    )  # fmt: skip


_NAMES = ("what", "session", "sessions", "its", "a", "b", "workflow")
"""Parameters of commands that name what is looked for."""


def _parse_store(ctx: click.Context, parameter: click.Parameter, given: str) -> str | None:
    """Return the store that was typed, else the place that has what the command names."""
    store = words.parse_store(ctx, parameter, given)
    source = ctx.get_parameter_source(str(parameter.name))
    if store is None or ctx.resilient_parsing or source is not ParameterSource.DEFAULT:
        return store
    named = [ctx.params[name] for name in _NAMES if ctx.params.get(name)]
    names = [name for value in named for name in ((value,) if isinstance(value, str) else value)]
    from graflow_ckpt.interfaces.cli.finding import place_of

    return place_of(manner_of(ctx), store, names)


def running(function: F) -> F:
    """What `run` and `resume` have in common."""
    for option in reversed((
        click.option("--max-steps", type=click.IntRange(min=1), metavar="N",
                     help="Stop after so many steps, counted over all resumes."),
        click.option("--durability", type=click.Choice(["auto", "checkpoint", "journal", "none"]),
                     help="What survives a crash: every commit, large values within a budget of time (auto); "
                     "the newest checkpoint; every commit (journal); or nothing."),
        click.option("--every", "policy", multiple=True, callback=words.parse_every, metavar="N|30s",
                     help="Checkpoint every N steps or every 30s; may be repeated."),
        click.option("--changed", type=click.Choice(["reuse", "rerun"]),
                     help="What to do with completed tasks that have changed since."),
        click.option("--in-doubt", multiple=True, callback=words.parse_answers,
                     metavar="TASK=rerun|skip|fail",
                     help="What to do with a task that was running when its process died."),
        click.option("--until-damage", is_flag=True,
                     help="Use a damaged journal up to the damage; what was committed after it is lost."),
        click.option("--take-over", is_flag=True, help=TAKE_OVER),
        click.option("--yes", is_flag=True, help="With --take-over: do not ask before a process is ended."),
        click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
                     help="Show what the engine logs."),
        click.option("--progress/--no-progress", default=True, help="Show what goes on while it runs."),
    )):  # fmt: skip
        function = option(function)
    return function


# --- completion ----------------------------------------------------------------------------


def _ids(ctx: click.Context) -> dict[str, str]:
    """Session ids by what the names of their files say; nothing is opened."""
    from graflow_ckpt.interfaces.cli.names import session_names

    return session_names(_named_store(ctx))


def _named_store(ctx: click.Context) -> str:
    return str(ctx.params.get("store") or ctx.params.get("origin") or default_store())


def complete_sessions(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    found = _ids(ctx).items()
    return [CompletionItem(name, help=text) for name, text in found if name.startswith(incomplete)]


def complete_remote(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Sessions of the fleet that is set up; a server that does not answer at once is as good as none."""
    from click.shell_completion import CompletionItem

    from graflow_ckpt.interfaces.cli.connecting import some_sessions

    return [CompletionItem(name) for name in some_sessions(ctx) if name.startswith(incomplete)]


def complete_everywhere(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Sessions of the fleet and of the store, and the paths of checkpoints."""
    remote = [] if os.sep in incomplete else complete_remote(ctx, parameter, incomplete)
    return complete_places(ctx, parameter, incomplete) + remote


def complete_places(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Sessions and the paths of checkpoints."""
    from click.shell_completion import CompletionItem

    from graflow_ckpt.interfaces.cli.names import checkpoint_paths

    store = _named_store(ctx)
    folder = os.path.dirname(incomplete) if os.sep in incomplete else store
    paths = [CompletionItem(path) for path in checkpoint_paths(folder) if path.startswith(incomplete)]
    folders = complete_folders(ctx, parameter, incomplete) if os.sep in incomplete else []
    return complete_sessions(ctx, parameter, incomplete) + (paths or folders)


def complete_folders(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def complete_files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]
