"""Values as cells, and the check that what a user hands over can be stored.

A plain value becomes its codec bytes, any other a Live box around the object itself. The check
is made where the user's line is still on the stack: what passes can be saved later, unless it
is changed into something that cannot.
"""

from __future__ import annotations

from typing import Any

from graflow_ckpt.checkpoint.codec import encode
from graflow_ckpt.checkpoint.kinds import NotPlain
from graflow_ckpt.checkpoint.pickles import check_picklable, live_bytes, load_live
from graflow_ckpt.core.values import Cell, Live


# Any, here and below: whatever the user put into the channel.
def to_cell(value: Any) -> Cell:
    """The cell of a value, unchecked."""
    try:
        return encode(value)
    except NotPlain:
        return Live(value)


def check_storable(name: str, value: Any) -> Cell:
    """The cell of a value; NotStorable with the path from `name` to what cannot be kept."""
    cell = to_cell(value)
    if isinstance(cell, Live):
        check_picklable(value, name)
    return cell


def apart(cell: Cell) -> Cell:
    """The cell with an object of its own: what is done to the one that it was made from stays outside."""
    return cell if isinstance(cell, bytes) else Live(load_live(live_bytes(cell.value)))
