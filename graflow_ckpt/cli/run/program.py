"""Programs: a file run as `__main__`, or a module imported, as if graflow-ckpt were not there.

`graflow-ckpt run FILE.py` and `python FILE.py` are one program: `__main__`, `sys.argv` and
`sys.path[0]` are what they would be, and stay so until the process ends. A module is named
`module:workflow`; its `__main__` is empty, and `sys.argv[0]` keeps that name, so that a resume
finds it again. What a program raises is shown without the engine's frames.
"""

from __future__ import annotations

import builtins
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

import click

from graflow_ckpt.core.errors import GraflowError, GraphError, NotStorable
from graflow_ckpt.frontends.dsl import Workflow
from graflow_ckpt.frontends.overrides import overrides

_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_LIBRARY = ("<frozen ", sysconfig.get_path("stdlib") + os.sep)


def is_file(target: str) -> bool:
    return target.endswith(".py") or os.sep in target or os.path.isfile(target)


def run(target: str, arguments: Sequence[str], called: str | None = None) -> None:
    """Run a file, `called` as sys.argv[0] says, or a module's workflow."""
    _check(target)
    if is_file(target):
        _run_file(target, [called or target, *arguments])
    else:
        _run_module(target, arguments)


def _check(target: str) -> None:
    """Refuse what is neither a file nor a module, and looks like one of them."""
    name, _, chosen = target.partition(":")
    if os.path.isdir(target) and not os.path.isfile(os.path.join(target, "__init__.py")):
        raise click.UsageError(f"{target} is a folder. Name a file in it, or a module: MODULE:WORKFLOW.")
    if name.endswith(".py") and os.path.isfile(name) and not os.path.exists(target):
        module = os.path.basename(name).removesuffix(".py")
        raise click.UsageError(
            f"{name} is a file, and all of it is run. A workflow is named by module: {module}:{chosen}."
        )


def _run_file(target: str, argv: Sequence[str]) -> None:
    path = os.path.abspath(target)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise click.UsageError(f"{target} cannot be read: {error.strerror}.") from error
    main = new_main()
    main.__file__ = path
    vars(main)["__loader__"] = SourceFileLoader("__main__", path)  # inspect.getsource asks it
    sys.argv = list(argv)
    _first_on_path(os.path.dirname(os.path.realpath(path)))
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


def _run_module(target: str, arguments: Sequence[str]) -> None:
    name, _, chosen = target.partition(":")
    if not all(part.isidentifier() for part in name.split(".")):
        raise click.UsageError(f"There is no file and no module {name!r} here.")
    new_main()
    sys.argv = [target if ":" in target else f"{target}:", *arguments]
    _first_on_path(os.getcwd())
    if chosen:
        overrides.only = chosen  # if it is a workflow's name, it may run while the module is imported
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise click.UsageError(f"There is no file and no module {name!r} here.") from error
    if not overrides.executed:
        workflow = _choose(module, chosen)
        overrides.only = workflow.name
        workflow.execute()


def _choose(module: ModuleType, chosen: str) -> Workflow:
    """Choose by variable or by name; without either the only one."""
    met: list[Workflow] = overrides.met
    if not met:  # the checkpoint that it continues from has had it imported before
        met = [found for found in vars(module).values() if isinstance(found, Workflow)]
    known = ", ".join(sorted({workflow.name for workflow in met})) or "none"
    if chosen:
        found = vars(module).get(chosen)
        if isinstance(found, Workflow):
            return found
        met = [workflow for workflow in met if workflow.name == chosen]
    if len(met) == 1:
        return met[0]
    what = f"no workflow {chosen!r}" if chosen else "several workflows" if met else "no workflow"
    name = module.__name__
    raise click.UsageError(f"{name} has {what} (it has: {known}). Name one: {name}:WORKFLOW")


def new_main() -> ModuleType:
    """Put an empty program in the place of the command line's own."""
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    return main


def _first_on_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]


def looked_for(file: str | None) -> None:
    """Let modules that a checkpoint names be found where its program found them: beside its file, or in the
    working folder, which the script of an installation, other than `python -m`, does not have on its path."""
    folder = os.path.dirname(os.path.realpath(file)) if file else os.getcwd()
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.insert(0, folder)


class Sandbox:
    """Around a program: its exceptions end here, shown as Python would, without our frames.

    Errors of this package pass, with the line of the program that led to them.
    """

    def __init__(self) -> None:
        self.status: int | None = None  # as the program left it; None: it ran to its end
        self.error: BaseException | None = None

    def __enter__(self) -> Sandbox:
        overrides.collecting = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        match error:
            case SystemExit():
                self.status = _status(error.code)
            case KeyboardInterrupt():
                self.status = 130
            case GraphError() | NotStorable():  # fixed in the program, so it is said where
                error.add_note(_users_line(trace))
                return False
            case GraflowError():
                return False
            case Exception() if not isinstance(error, (click.ClickException, click.Abort, BrokenPipeError)):
                self.status, self.error = 1, error
                sys.stderr.write("".join(own_frames(error)))
            case _:
                return False
        return True


def _status(code: object) -> int:
    """Return what Python makes of `sys.exit(code)`."""
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1


def own_frames(error: BaseException) -> list[str]:
    """Return the traceback without the frames of this package."""
    shown = traceback.TracebackException.from_exception(error)
    todo, seen = [shown], set()
    while todo:
        one = todo.pop()
        seen.add(id(one))
        one.stack = traceback.StackSummary.from_list(_of_the_user(one.stack))
        linked = [one.__cause__, one.__context__, *(one.exceptions or ())]
        todo += [other for other in linked if other is not None and id(other) not in seen]
    return list(shown.format())


def _users_line(trace: TracebackType | None) -> str:
    """Return where in the program an error of ours was raised."""
    frames = [f for f in _of_the_user(traceback.extract_tb(trace)) if not _of_the_library(f.filename)]
    return f"at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


def _of_the_user(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return frames without ours, and without those of the standard library that ours have called."""
    kept: list[traceback.FrameSummary] = []
    ours = False
    for frame in frames:
        ours = frame.filename.startswith(_PACKAGE) or (ours and _of_the_library(frame.filename))
        if not ours:
            kept.append(frame)
    return kept


def _of_the_library(filename: str) -> bool:
    return filename.startswith(_LIBRARY) and "site-packages" not in filename
