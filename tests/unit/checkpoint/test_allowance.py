"""What a checkpoint may take: counted to the end, written to the limit, warned of once."""

from __future__ import annotations

import io
import logging

import pytest

from graflow_ckpt.checkpoint.allowance import Allowance
from graflow_ckpt.core.errors import TooLarge


def test_past_the_limit_it_is_counted_and_no_longer_written() -> None:
    meter, out = Allowance(10).meter("s", "x.pkl", "request"), io.BytesIO()
    sink = meter.sink(out)

    assert sink.write(b"12345") == 5
    meter.check()
    assert sink.write(memoryview(b"123456").cast("B")) == 6
    sink.write(bytes(1000))

    assert out.getvalue() == b"12345"
    with pytest.raises(TooLarge) as caught:
        meter.check()
    assert (caught.value.size, caught.value.limit, caught.value.path) == (1011, 10, "x.pkl")


def test_without_a_limit_nothing_stands_between() -> None:
    out = io.BytesIO()
    meter = Allowance().meter("s", "x.pkl", "request")

    assert meter.sink(out) is out
    meter.check()
    meter.done()


@pytest.mark.parametrize("cause", ["failure", "signal", "pause"])
def test_what_a_session_pauses_with_is_written_to_the_end(cause: str) -> None:
    meter, out = Allowance(10).meter("s", "x.pkl", cause), io.BytesIO()

    meter.sink(out).write(bytes(1000))
    meter.check()

    assert len(out.getvalue()) == 1000


def test_near_the_limit_there_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    allowance = Allowance(1_000_000)

    with caplog.at_level(logging.WARNING):
        for size in (799_999, 800_000, 900_000):
            meter = allowance.meter("s", "x.pkl", "request")
            meter.sink(io.BytesIO()).write(bytes(size))
            meter.done()

    assert [record.getMessage() for record in caplog.records] == [
        "Checkpoint size (0.8 MB) approaches limit (1 MB)."
    ]
