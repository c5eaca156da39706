"""Worker threads: few, reused, and none that keeps anybody from ending."""

from __future__ import annotations

import threading

from graflow_ckpt.engine.invoke import Threads


def named(prefix: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def test_jobs_run_side_by_side() -> None:
    threads = Threads("side")
    together = threading.Barrier(3, timeout=30)
    for _ in range(2):
        threads.submit(lambda: together.wait() and None)

    together.wait()

    threads.close()


def test_an_idle_thread_is_used_again() -> None:
    threads = Threads("again")
    done = threading.Semaphore(0)
    for _ in range(50):
        threads.submit(done.release)
        assert done.acquire(timeout=30)
        while not threads._idle:  # the job is over a moment before its thread is idle
            threading.Event().wait(0.001)

    assert [thread.name for thread in named("again")] == ["again-1"]
    threads.close()


def test_a_thread_is_started_when_none_is_idle() -> None:
    threads = Threads("more")
    hold, begun = threading.Event(), threading.Semaphore(0)

    def body() -> None:
        begun.release()
        hold.wait(30)

    for _ in range(3):
        threads.submit(body)
        assert begun.acquire(timeout=30)

    assert sorted(thread.name for thread in named("more")) == ["more-1", "more-2", "more-3"]
    assert all(thread.daemon for thread in named("more"))
    hold.set()
    threads.close()


def test_idle_threads_end_with_the_run_and_busy_ones_after_their_job() -> None:
    threads = Threads("end")
    hold, begun, over = threading.Event(), threading.Event(), threading.Event()

    def body() -> None:
        begun.set()
        hold.wait(30)
        over.set()

    threads.submit(body)
    begun.wait(30)
    (thread,) = named("end")
    threads.close()
    assert thread.is_alive()

    hold.set()
    thread.join(30)

    assert over.is_set()
    assert not thread.is_alive()
