"""`graflow-ckpt completion`: the script that teaches a shell the command line."""

from __future__ import annotations

import click

from graflow_ckpt.cli import options
from graflow_ckpt.cli.app import app
from graflow_ckpt.cli.terminal import Manner

VARIABLE = "_GRAFLOW_CKPT_COMPLETE"
PLACES = {
    "bash": "~/.local/share/bash-completion/completions/graflow-ckpt",
    "zsh": "a folder of $fpath, as _graflow-ckpt (for example ~/.zfunc)",
    "fish": "~/.config/fish/completions/graflow-ckpt.fish",
}


@options.command("completion")
@click.argument("shell", type=click.Choice(list(PLACES)))
def command(manner: Manner, /, shell: str) -> None:
    """Print the completion script of a shell, and say where to put it.

    It completes commands, options, session ids and the paths of checkpoints.

    Examples:
      graflow-ckpt completion bash \\
          > ~/.local/share/bash-completion/completions/graflow-ckpt
      eval "$(graflow-ckpt completion zsh)"            for this shell only
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(app, {}, "graflow-ckpt", VARIABLE).source()
    document = {"shell": shell, "script": script, "place": PLACES[shell]}
    manner.result(document, f"put this into {PLACES[shell]}", out=script)
