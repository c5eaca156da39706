"""A server that forks lives of one program and kills each at its n-th line of the package.

    python -m tests.acceptance.programs.killing PROGRAM DURABILITY POINTS FOLDER

It has imported everything and has no threads, so that a life costs a fork. Each point has a folder of
its own, with its own key: one life is killed there, others follow until the program has finished. What
came of it is printed as one line of JSON. It judges nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path
from pkgutil import walk_packages
from types import CodeType, FrameType
from typing import Any

import graflow_ckpt
from tests.acceptance.programs.flows import PROGRAMS, Program

PACKAGE = Path(graflow_ckpt.__file__).parent
TRACED = tuple(f"{PACKAGE / part}{os.sep}" for part in ("engine", "checkpoint", "stores"))
LIVES = 4


class Lines:
    """Counts the lines of the package that this process runs, in all threads; the n-th kills it."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.process = os.getpid()  # a process that this one forks counts for itself, and is not killed
        self._count = count(1)
        self._ours: dict[CodeType, bool] = {}
        self._tick = self._count.__next__

    @property
    def number(self) -> int:
        return self._tick() - 1

    def start(self) -> None:
        if sys.version_info >= (3, 12):
            self._monitor(sys.monitoring)
        else:
            threading.settrace(self._enter)
            sys.settrace(self._enter)

    def line(self) -> None:
        if self._tick() == self.last and os.getpid() == self.process:
            os.kill(self.process, signal.SIGKILL)

    def _is_ours(self, code: CodeType) -> bool:
        known = self._ours.get(code)
        if known is None:
            known = self._ours[code] = code.co_filename.startswith(TRACED)
        return known

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._trace if self._is_ours(frame.f_code) else None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.line()
        return self._trace

    def _monitor(self, monitoring: Any) -> None:
        def line(code: CodeType, number: int) -> Any:
            if not self._is_ours(code):
                return monitoring.DISABLE
            self.line()
            return None

        monitoring.use_tool_id(monitoring.DEBUGGER_ID, "kill anywhere")
        monitoring.register_callback(monitoring.DEBUGGER_ID, monitoring.events.LINE, line)
        monitoring.set_events(monitoring.DEBUGGER_ID, monitoring.events.LINE)


def import_everything() -> None:
    """What is imported late is imported now, once for all lives."""
    for found in walk_packages([str(PACKAGE)], "graflow_ckpt."):
        if not found.name.startswith(
            tuple(f"graflow_ckpt.{part}" for part in ("cli", "config", "observers", "__main__"))
        ):
            import_module(found.name)
    for name in ("asyncio", "blake3", "cloudpickle", "msgpack", "numpy.random", "random", "uuid", "inspect"):
        import_module(name)


def life(program: Program, durability: str, folder: Path, last: int | None) -> int:
    """One process; its wait status. It dies at its `last` line, if it gets that far."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    status = 1
    try:
        os.chdir(folder)
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        os.environ["XDG_DATA_HOME"] = f"{folder}/data"  # else the session of another point is one elsewhere
        errors = os.open("errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(errors, 2)
        lines = Lines(last or 0)
        if last is not None:
            lines.start()
        final = program.main(durability)
        sys.settrace(None)
        Path("final.json").write_text(json.dumps({"state": final, "lines": lines.number}))
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)


def point(program: Program, durability: str, folder: Path, last: int) -> dict[str, Any]:
    """One death, and the lives that follow until the program has finished."""
    folder.mkdir()
    try:
        first = life(program, durability, folder, last)
        killed = os.WIFSIGNALED(first) and os.WTERMSIG(first) == signal.SIGKILL
        lives = [first]
        while lives[-1] != 0 and len(lives) < LIVES:
            with open(folder / "log", "a") as log:
                log.write(f"life {len(lives)} -\n")
            lives.append(life(program, durability, folder, None))
        return {
            "last": last,
            "killed": killed,
            "lives": lives,
            "final": _read(folder / "final.json", json.loads),
            "log": _read(folder / "log", str.splitlines),
            "errors": (_read(folder / "errors", str) or "")[-2000:] if lives[-1] else "",
            "outlived": _end_loaders(folder),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a loader that has just been ended may leave a file


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    return parse(path.read_text()) if path.exists() else None


def _end_loaders(folder: Path) -> int:
    """End what the program has forked, by its pid; how many of the killed life's own were still alive."""
    outlived, dead = 0, False
    for line in _read(folder / "log", str.splitlines) or ():
        what, number, _ = line.split()
        dead |= what == "life"
        if what == "loader":
            try:
                os.kill(int(number), signal.SIGKILL)
            except ProcessLookupError:
                continue
            outlived += not dead
    return outlived


def main(name: str, durability: str, points: str, place: str) -> None:
    program = PROGRAMS[name]
    import_everything()
    whole = point(program, durability, Path(place, "whole"), -1)
    total = whole["final"]["lines"]
    print(json.dumps({"whole": whole, "lines": total}), flush=True)
    wanted = int(points)
    for number in range(wanted):
        at = 1 + number * (total - 1) // wanted
        found = point(program, durability, Path(place, f"p{number}"), at)
        while not found["killed"] and at > 1:  # on threads the last lines are not always reached
            at = at * 9 // 10
            found = point(program, durability, Path(place, f"p{number}"), at)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
