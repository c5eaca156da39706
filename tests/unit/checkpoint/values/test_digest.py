"""Digests: the same however a part is written, and no byte comes out that was not checked."""

from __future__ import annotations

import io
import threading
from contextlib import closing, suppress
from itertools import accumulate

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.values.digest import CHUNK, Digest, DigestingSink, VerifyingSource
from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Buffer

CONTENT = np.random.default_rng(0).bytes(5 * CHUNK + 12_345)
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, len(CONTENT)]
sizes = st.one_of(st.sampled_from(SIZES), st.integers(0, len(CONTENT)))


class Part:
    """A source over bytes that gives at most `most` of them at a time."""

    def __init__(self, data: bytes, most: int = 3_000_000, size: int | None = None) -> None:
        self._file, self._most = io.BytesIO(data), most
        self.size = len(data) if size is None else size
        self.closed = False

    def readinto(self, buffer: memoryview, /) -> int:
        return self._file.readinto(buffer[: self._most])

    def close(self) -> None:
        self.closed = True


def digest_of(data: bytes) -> Digest:
    chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    return Digest(len(data), tuple(blake3(chunk).hexdigest() for chunk in chunks))


def threads() -> int:
    return sum(t.name == "graflow-ckpt-digest" for t in threading.enumerate())


@settings(max_examples=50)
@given(sizes, st.lists(st.integers(0, len(CONTENT)), max_size=8))
def test_a_digest_does_not_depend_on_how_a_part_was_written(size: int, cuts: list[int]) -> None:
    ends = sorted({*(cut for cut in cuts if cut < size), size})
    out = io.BytesIO()

    with DigestingSink(out) as sink:
        for start, end in zip([0, *ends], ends, strict=False):
            assert sink.write(memoryview(CONTENT)[start:end]) == end - start
        digest = sink.finish()

    assert digest == digest_of(CONTENT[:size])
    assert out.getvalue() == CONTENT[:size]
    assert threads() == 0


@settings(max_examples=50)
@given(sizes, st.lists(st.integers(1, len(CONTENT)), max_size=8))
def test_what_is_read_is_what_was_written(size: int, reads: list[int]) -> None:
    source = VerifyingSource(Part(CONTENT[:size]), digest_of(CONTENT[:size]))

    for start, length in zip(accumulate(reads, initial=0), [*reads, len(CONTENT)], strict=True):
        buffer = memoryview(bytearray(length))
        count = source.readinto(buffer)

        assert count == max(0, min(length, size - start))
        assert buffer[:count] == CONTENT[start : start + count]
    source.close()
    assert threads() == 0


@settings(max_examples=50)
@given(st.sampled_from(SIZES[1:]), st.data())
def test_no_damaged_byte_comes_out(size: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, size - 1))
    damaged = bytearray(CONTENT[:size])
    damaged[at] ^= 1
    source = VerifyingSource(Part(bytes(damaged)), digest_of(CONTENT[:size]), name="pkl")
    got = bytearray()

    def read_all() -> None:
        while len(got) < size:
            buffer = memoryview(bytearray(data.draw(st.integers(CHUNK // 2, 3 * CHUNK))))
            got.extend(buffer[: source.readinto(buffer)])

    with closing(source):  # also where nothing more can be drawn
        with pytest.raises(CheckpointCorrupt, match="pkl") as caught:
            read_all()
        with pytest.raises(CheckpointCorrupt, match="earlier"):
            read_all()

    assert got == CONTENT[: len(got)]
    assert caught.value.chunk == at // CHUNK
    assert threads() == 0


@pytest.mark.parametrize("size", SIZES)
def test_a_part_of_another_length_is_refused_before_anything_is_read(size: int) -> None:
    for other in (CONTENT[: size + 1], CONTENT[: max(0, size - 1)]):
        if len(other) != size:
            with pytest.raises(CheckpointCorrupt, match="bytes"):
                VerifyingSource(Part(other), digest_of(CONTENT[:size]))


def test_a_part_that_lies_about_its_length_is_refused() -> None:
    for data in (CONTENT[:-1], CONTENT + b"x"):
        source = VerifyingSource(Part(data, size=len(CONTENT)), digest_of(CONTENT))
        with pytest.raises(CheckpointCorrupt, match=r"early|goes on"):
            source.readinto(memoryview(bytearray(len(CONTENT))))
        source.close()


def test_digests_that_do_not_fit_the_length_are_refused() -> None:
    good = digest_of(CONTENT)

    for chunks in (good.chunks[:-1], (*good.chunks, good.chunks[0])):
        with pytest.raises(CheckpointCorrupt):
            VerifyingSource(Part(CONTENT), Digest(good.size, chunks))


class Looking(Part):
    """Sees at each call how many threads digest."""

    def __init__(self, data: bytes, seen: list[int]) -> None:
        super().__init__(data)
        self._seen = seen

    def readinto(self, buffer: memoryview, /) -> int:
        self._seen.append(threads())
        return super().readinto(buffer)

    def write(self, data: Buffer, /) -> int:
        self._seen.append(threads())
        return len(data)


def test_a_part_of_one_chunk_starts_no_thread() -> None:
    seen: list[int] = []

    sink = DigestingSink(Looking(b"", seen))
    sink.write(CONTENT[:CHUNK])
    source = VerifyingSource(Looking(CONTENT[:CHUNK], seen), sink.finish())
    source.readinto(memoryview(bytearray(CHUNK)))

    assert set(seen) == {0}


def test_large_parts_are_digested_in_a_second_thread_while_they_are_written_and_read() -> None:
    seen: list[int] = []

    with DigestingSink(Looking(b"", seen)) as sink:
        sink.write(CONTENT)
        digest = sink.finish()
    source = VerifyingSource(Looking(CONTENT, seen), digest)
    source.readinto(memoryview(bytearray(len(CONTENT))))
    source.close()

    assert seen[0] == 1
    assert seen[-1] == 1
    assert threads() == 0


def test_a_writer_that_fails_leaves_no_thread() -> None:
    class Full:
        def write(self, data: Buffer, /) -> int:
            raise OSError("full")

    with suppress(OSError), DigestingSink(Full()) as sink:
        sink.write(CONTENT)

    assert threads() == 0


def test_a_small_buffer_may_be_used_again_at_once() -> None:
    out = io.BytesIO()
    buffer = bytearray(1000)

    with DigestingSink(out) as sink:
        for i in range(10):
            buffer[:] = bytes([i]) * 1000
            sink.write(buffer)
        digest = sink.finish()

    assert digest == digest_of(out.getvalue())


def test_closing_closes_the_source() -> None:
    part = Part(b"a")

    VerifyingSource(part, digest_of(b"a")).close()

    assert part.closed
