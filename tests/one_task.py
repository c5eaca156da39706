"""Prints the files whose functions run from `execute()` of one task to its checkpoint: `python one_task.py`.

To the checkpoint is to the rename of .meta.json, in the thread that executes and in those that it starts. It
is done twice, and looked at the second time: then the bodies of modules have run.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from graflow_ckpt import TaskExecutionContext, Workflow, task, workflow

seen: set[str] = set()


@task(inject_context=True)
def only(context: TaskExecutionContext) -> None:
    context.checkpoint()


def one() -> Workflow:
    with workflow("one") as flow:
        return flow.add(only)


def note(frame: FrameType, event: str, argument: Any) -> None:  # Any: as the interpreter has it
    seen.add(frame.f_code.co_filename)


def renamed(event: str, words: tuple[object, ...]) -> None:
    if event == "os.rename" and str(words[1]).endswith(".meta.json") and sys.getprofile() is note:
        sys.setprofile(None)
        threading.setprofile(None)
        print("\n".join(sorted(seen)))


if __name__ == "__main__":
    one().execute()
    again = one()
    sys.addaudithook(renamed)
    threading.setprofile(note)
    sys.setprofile(note)
    again.execute()
