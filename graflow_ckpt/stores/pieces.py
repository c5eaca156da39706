"""Reading exactly so much of a part, however its source cuts it."""

from __future__ import annotations

from graflow_ckpt.core.protocols import Source


def read_up_to(source: Source, size: int) -> bytearray:
    """So many bytes; fewer, if there are no more."""
    found = bytearray(size)
    done = 0
    with memoryview(found) as view:
        while done < size:
            count = source.readinto(view[done:])
            if not count:
                break
            done += count
    return found[:done] if done < size else found
