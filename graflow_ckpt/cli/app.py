"""The command group: names, one-line descriptions, and where each command's file is.

Also the one place where errors become messages and exit statuses:

    0 done    1 failed    2 usage    3 waiting for an answer    74 all done, the end not saved
    75 interrupted, try again
    124 not in time    130 Ctrl-C
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

import click

from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.frontends.door import needed

COMMANDS = {
    "run": ("run", "Run a program's workflow under a session."),
    "resume": ("run", "Go on with a session, or from one checkpoint."),
    "plan": ("run", "Show what a resume would reuse and run."),
    "sessions": ("inspect", "List the sessions of a store and of a fleet; purge them."),
    "checkpoints": ("inspect", "List, compare, copy and delete checkpoints; take one of a fleet's session."),
    "prune": ("care", "Delete checkpoints that are too old or too many, as `checkpoints prune` does."),
    "submit": ("fleet", "Have a fleet run a program's workflow."),
    "worker": ("fleet", "Run the tasks of a fleet."),
    "status": ("fleet", "Show how far a session of a fleet is."),
    "wait": ("fleet", "Wait until a session of a fleet has ended."),
    "pause": ("fleet", "Have a session of a fleet hand out no more tasks."),
    "cancel": ("fleet", "End a session of a fleet for good."),
    "failed": ("fleet", "List tasks that have failed on a fleet; run them again."),
    "top": ("fleet", "Watch the sessions and workers of a fleet."),
    "trust": ("care", "Look at a foreign checkpoint and seal it with your key."),
    "key": ("care", "Make, list and replace the keys that seal checkpoints."),
    "db": ("care", "Make, change and look at the tables of a store in a database."),
    "settings": ("inspect", "Show what is set, and where it comes from."),
    "doctor": ("inspect", "What is installed, writable and safe here, and reached."),
    "completion": ("inspect", "Print the completion script of a shell."),
}
"""The folder of each, where its module is called like the command, and what it does."""


class Commands(click.Group):
    """Loads a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        folder, text = COMMANDS[cmd_name]
        module = "removal" if cmd_name == "prune" else cmd_name  # it is also in the group `checkpoints`
        command: click.Command = import_module(f"graflow_ckpt.cli.{folder}.{module}").command
        command.short_help = command.short_help or text
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = args[0] in COMMANDS or args[0].startswith("-")
        if known or ctx.resilient_parsing or not (meant := self._meant(ctx, args[0])):
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"No such command {args[0]!r}. Did you mean: graflow-ckpt {meant}?", ctx)

    def _meant(self, ctx: click.Context, name: str) -> str:
        """Return what a user meant that left out `checkpoints`, or mistyped; "": nothing is near."""
        checkpoints = self.get_command(ctx, "checkpoints")
        if isinstance(checkpoints, click.Group) and name in checkpoints.commands:
            return f"checkpoints {name}"
        return next(iter(get_close_matches(name, COMMANDS, 1)), "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from graflow_ckpt import __version__

        click.echo(f"graflow-ckpt {__version__}, Python {sys.version.split()[0]}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A session starts with: graflow-ckpt run FILE.py --session NAME. Kill it, and type it again. "
    "On a fleet: graflow-ckpt submit FILE.py, and graflow-ckpt worker on any number of machines.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show versions."
)
def app() -> None:
    """Workflows in which the checkpoint comes first: kill anything, run the same command, go on."""


def _is_nowhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def call(arguments: Sequence[str] | None) -> int:
    """Run one command; the exit status."""
    manner = Manner()
    given = list(sys.argv[1:] if arguments is None else arguments)  # before a program gets its own
    try:
        with needed():
            status = app.main(arguments, prog_name="graflow-ckpt", standalone_mode=False, obj=manner)
        return int(status or 0)
    except click.exceptions.Abort as error:
        worked = isinstance(error.__cause__, KeyboardInterrupt)  # else a question was not answered with yes
        manner.note("Interrupted; what was done until then stands." if worked else "Nothing was done.")
        return 130
    except click.ClickException as error:
        manner.json = "--json" in given  # the error may have come before that option was read
        manner.usage(error)
        return error.exit_code
    except GraflowError as error:
        return manner.failed(error)
    except FileNotFoundError:
        if not _is_nowhere():
            raise
        return manner.failed(GraflowError("The working folder was deleted.", hint="Go to another one: cd."))
    except KeyboardInterrupt:
        return 130
