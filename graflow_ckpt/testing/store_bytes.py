"""The contract of one part: the bytes that went in come out, however they were cut."""

from __future__ import annotations

import array
import hashlib
import random

import pytest

from graflow_ckpt.core.protocols import Buffer, CheckpointStore, PartWriter, Sink
from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.trios import all_of, meta_of, path_of, put_meta, writer

LARGE = (20 << 20) + 7


class BytesContract(Contract):
    """Sizes, buffers, pieces. Nothing is dropped, changed, or kept by reference."""

    @pytest.mark.parametrize(
        "size", [0, 1, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, (1 << 20) + 3, (4 << 20), (8 << 20) + 1]
    )
    def test_a_part_of_any_size_comes_back(self, opener: Opener, size: int) -> None:
        store, data = opener(), random.Random(size).randbytes(size)

        path = _put(store, writer(data))

        source = store.open(path, "pkl", "one")
        assert source.size == size
        assert _same(all_of(source), data)

    def test_a_large_part_written_at_once_comes_back_in_order(self, opener: Opener) -> None:
        store, data = opener(), random.Random(1).randbytes(LARGE)

        path = _put(store, lambda sink: _write(sink, data))

        assert store.open(path, "pkl", "one").size == LARGE
        assert _same(all_of(store.open(path, "pkl", "one"), 3_000_001), data)

    def test_many_small_writes_are_one_part(self, opener: Opener) -> None:
        store, rng = opener(), random.Random(2)
        pieces = [rng.randbytes(rng.randrange(60)) for _ in range(20_000)]

        def write(sink: Sink) -> None:
            for piece in pieces:
                _write(sink, piece)

        path = _put(store, write)

        assert _same(all_of(store.open(path, "pkl", "one")), b"".join(pieces))

    def test_every_kind_of_buffer_counts_in_bytes(self, opener: Opener) -> None:
        store, numbers = opener(), array.array("I", range(50_000))
        kinds: list[Buffer] = [b"bytes", bytearray(b"bytearray"), memoryview(b"view"), memoryview(numbers)]
        kinds += [memoryview(b"0123456789")[2:5], memoryview(bytes(6)).cast("B", (2, 3)), b""]

        def write(sink: Sink) -> None:
            for data in kinds:
                _write(sink, data)

        path = _put(store, write)

        expected = b"".join(data.tobytes() if isinstance(data, memoryview) else bytes(data) for data in kinds)
        assert _same(all_of(store.open(path, "pkl", "one")), expected)

    def test_a_buffer_may_be_used_again_after_a_write(self, opener: Opener) -> None:
        store, buffer = opener(), bytearray(200_000)

        def write(sink: Sink) -> None:
            for number in range(60):
                buffer[:] = bytes([number]) * len(buffer)
                sink.write(memoryview(buffer)[: 1000 * (number + 1)])
            buffer[:] = b"\xff" * len(buffer)

        path = _put(store, write)

        expected = b"".join(bytes([number]) * 1000 * (number + 1) for number in range(60))
        assert _same(all_of(store.open(path, "pkl", "one")), expected)

    def test_a_part_is_read_in_pieces_of_any_size(self, opener: Opener) -> None:
        store, data = opener(), random.Random(3).randbytes(5_000_000)
        path = _put(store, writer(data))

        for step in (997, 65_537, 6_000_000):
            assert _same(all_of(store.open(path, "pkl", "one"), step), data)

    def test_the_end_of_a_part_stays_the_end(self, opener: Opener) -> None:
        store = opener()
        path = _put(store, writer(b"short"))
        source, buffer = store.open(path, "pkl", "one"), memoryview(bytearray(100))

        found = [source.readinto(buffer) for _ in range(3)]
        source.close()
        source.close()

        assert found == [5, 0, 0]
        assert bytes(buffer) == b"short" + bytes(95)

    def test_two_who_read_one_part_do_not_disturb_each_other(self, opener: Opener) -> None:
        store, data = opener(), random.Random(4).randbytes(300_000)
        path = _put(store, writer(data))
        one, two = store.open(path, "pkl", "one"), store.open(path, "pkl", "one")
        first = memoryview(bytearray(1000))

        count = one.readinto(first)
        whole = all_of(two)

        assert _same(whole, data)
        assert _same(bytes(first[:count]) + all_of(one), data)

    def test_a_large_meta_comes_back_and_is_listed_whole(self, opener: Opener) -> None:
        store = opener()
        meta = meta_of("one")[:-1] + b', "note": "' + b"x" * 400_000 + b'"}'

        path = put_meta(store, "best", meta)

        assert _same(store.meta(path), meta)
        assert _same(next(iter(store.list()))[1], meta)


def _put(store: CheckpointStore, write: PartWriter) -> str:
    path = path_of(store, "best")
    store.put(path, [("pkl", write), ("meta.json", writer(meta_of("one")))], lease=None, stage="one")
    return path


def _write(sink: Sink, data: Buffer) -> None:
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    assert sink.write(data) == size


def _same(found: bytes, expected: bytes) -> bool:
    """Compared by digest: pytest would print megabytes."""
    assert len(found) == len(expected)
    assert hashlib.sha256(found).hexdigest() == hashlib.sha256(expected).hexdigest()
    return True
