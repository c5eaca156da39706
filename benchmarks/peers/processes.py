"""Worker processes of a benchmark: started, held still while tasks are submitted, let go, killed.

Each command runs in a process group of its own. Promise: no group outlives the benchmark, however that ends:
a guard (one `sh` for each set of workers) kills them when its pipe closes. Not here: what they run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_GUARD = """
while read -r group; do groups="$groups $group"; done
for group in $groups; do kill -s KILL -- "-$group"; done
"""
_HERE = Path(__file__).parents[2]


class Processes:
    def __init__(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.guard = subprocess.Popen(["sh", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True)
        self.leaders = [self._start(command, {**os.environ, **environment}) for command in commands]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            error.add_note(f"the workers' last words:\n{self.log.read_text(errors='replace')[-3000:]}")
        assert self.guard.stdin is not None
        self.guard.stdin.close()
        self.guard.wait()
        for leader in self.leaders:
            leader.wait()

    def members(self) -> list[int]:
        """The leaders and all that descend from them, parents first; their groups may be others."""
        children: dict[int, list[int]] = {}
        for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]:
            children.setdefault(_stat(pid)[1], []).append(pid)
        found = [leader.pid for leader in self.leaders if _stat(leader.pid)[0] != "X"]
        for pid in found:
            found += children.get(pid, [])
        return found

    def hold(self) -> None:
        """All of them stand still when this returns."""
        while moving := [pid for pid in self.members() if _stat(pid)[0] not in "TZX"]:
            _signal(moving, signal.SIGSTOP)
            time.sleep(0.001)

    def let_go(self) -> None:
        _signal(self.members()[::-1], signal.SIGCONT)

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as out:
            leader = subprocess.Popen(
                command,
                cwd=_HERE,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        assert self.guard.stdin is not None
        self.guard.stdin.write(b"%d\n" % leader.pid)
        self.guard.stdin.flush()
        return leader


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _stat(pid: int) -> tuple[str, int]:
    """State and parent; a process that is gone has neither."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "X", 0
    state, parent, *_ = stat.rpartition(")")[2].split()
    return state, int(parent)
