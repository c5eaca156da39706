"""Stores with one thing wrong, each convicted by the test that is named for it.

A conviction is an assertion of that test that fails, an error that it expected and did not get, or one
of the store's that it did not expect; an exception of any other kind is a fault of ours. The same test
passes on the sound store beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.redis import driver as redis_driver
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.conformance.broken import contents as contents
from tests.conformance.broken import folders as folders
from tests.conformance.broken import owners as owners
from tests.conformance.broken import trios as trios
from tests.conformance.contracts.contents import ContentContract
from tests.conformance.contracts.fencing import (
    FencingContract,
    FencingProcessContract,
    Snapshot,
)
from tests.conformance.contracts.journal import ProcessContract
from tests.conformance.contracts.store import StoreContract
from tests.conformance.contracts.trio import Contract, Opener
from tests.conformance.restoring import in_folder, in_memory, in_redis
from tests.servers import Server

IN_MEMORY: list[tuple[type[MemoryStore], str]] = [
    (trios.LosesReplacements, "test_what_is_put_again_is_replaced_as_a_whole"),
    (trios.LosesUnderLoad, "test_nothing_is_lost_when_many_put_under_one_lease"),
    (trios.WritesInPlace, "test_the_former_trio_is_read_until_the_last_part_is_written"),
    (trios.WritesInPlace, "test_a_reader_finds_one_trio_or_another_and_never_a_mix"),
    (trios.ShowsMetaFirst, "test_nothing_is_seen_of_a_trio_before_its_last_part_is_written"),
    (trios.SwallowsErrors, "test_a_writer_that_fails_leaves_the_former_trio"),
    (trios.LosesPartsOfResealed, "test_a_meta_put_alone_keeps_the_parts_of_its_stage"),
    (trios.KeepsBuffers, "test_a_buffer_may_be_used_again_after_a_write"),
    (trios.CountsItems, "test_every_kind_of_buffer_counts_in_bytes"),
    (trios.CutsLargeParts, "test_a_large_part_written_at_once_comes_back_in_order"),
    (trios.LosesTheLastChunk, "test_a_part_of_any_size_comes_back"),
    (trios.ReadsWhatIsThereNow, "test_a_part_that_is_being_read_is_not_mixed_with_its_successor"),
    (trios.DeletesHalf, "test_parts_of_a_deleted_trio_do_not_come_back"),
    (trios.DeletesByPattern, "test_wildcards_in_a_name_are_letters"),
    (trios.DeletesByPrefix, "test_deleting_leaves_the_others"),
    (trios.AlwaysDeletes, "test_deleting_takes_all_of_it_and_says_whether_it_was_there"),
    (trios.FindsNothing, "test_what_is_not_there_is_not_found"),
    (trios.ListsFromACache, "test_another_handle_lists_at_once_what_was_put_replaced_or_deleted"),
    (trios.ListsByName, "test_the_newest_of_a_session_comes_first"),
    (trios.ListsOnePage, "test_many_are_listed_once_each"),
    (trios.HidesDamage, "test_damaged_metas_are_kept_and_listed_as_they_are"),
    (trios.WritesMetaAnew, "test_metas_are_kept_to_the_byte"),
    (trios.ListsWhatIsBeingWritten, "test_a_listing_goes_on_while_checkpoints_come_and_go"),
    (trios.TakesEverything, "test_it_takes_its_own_paths_and_no_others"),
    (trios.FoldsCase, "test_names_that_differ_a_little_are_different"),
    (trios.SelectsByLike, "test_checkpoints_of_sessions_whose_ids_are_alike_are_apart"),
    (owners.FencesByTheClock, "test_who_has_lost_it_puts_nothing"),
    (owners.FencesAtTheStart, "test_a_put_that_began_before_the_loss_ends_without_a_trace"),
    (owners.FencesOwnNamesOnly, "test_who_has_lost_it_puts_nothing"),
    (owners.FencesAfterTheFact, "test_who_has_lost_it_puts_nothing"),
    *(
        (owners.FencesByTheEpochAlone, f"test_{test}")
        for test in (
            "who_has_lost_it_finds_out_and_is_told_who_the_owner_is",
            "who_has_lost_it_puts_nothing",
            "a_put_that_began_before_the_loss_ends_without_a_trace",
            "who_has_lost_it_cannot_let_the_session_go",
            "who_has_lost_it_appends_nothing",
            "who_has_lost_it_begins_no_segment",
            "two_owners_of_one_epoch_have_no_segment_in_common",
        )
    ),
    (owners.TakesAnyLease, "test_a_lease_of_something_else_is_refused"),
    (owners.ForgetsEpochs, "test_an_epoch_only_grows"),
    (owners.ReusesEpochs, "test_who_has_lost_it_finds_out_and_is_told_who_the_owner_is"),
    (owners.ReleasesByName, "test_who_has_lost_it_cannot_let_the_session_go"),
    (owners.LooksThenTakes, "test_of_many_who_acquire_at_once_one_is_the_owner"),
    (owners.ExpiresByThisClock, "test_no_step_of_this_machines_clock_changes_the_owner"),
    (owners.NeverRenews, "test_an_owner_that_does_nothing_stays_the_owner"),
    (owners.OwnsAllOrNothing, "test_sessions_are_owned_one_by_one"),
    (owners.NamesNobody, "test_a_second_owner_is_refused_and_told_who_the_first_is"),
    (owners.AppendsUnfenced, "test_who_has_lost_it_appends_nothing"),
    (owners.BuffersFrames, "test_a_frame_is_there_when_append_returns"),
    (owners.LosesFramesOfThreads, "test_frames_of_many_threads_stay_whole"),
    (owners.GoesOnAfterClose, "test_a_closed_segment_takes_nothing"),
    (owners.BeginsAnew, "test_a_segment_with_frames_is_not_begun_again"),
    (owners.DropsTooMuch, "test_what_a_cut_covers_is_dropped_and_nothing_else"),
    (owners.DropsOfOthers, "test_dropping_leaves_other_sessions_alone"),
    (owners.SortsSegmentsAsText, "test_segments_come_by_epoch_and_then_by_what_they_follow"),
    (owners.CutsFramesAtZeros, "test_frames_of_any_bytes_and_size_come_back"),
    (trios.ChoosesSessionBySession, "test_the_newest_come_first_also_between_sessions"),
    (trios.ChoosesByTheClock, "test_within_a_session_a_clock_that_is_put_back_makes_nothing_older"),
    (trios.FiltersAfterTheLimit, "test_the_newest_are_chosen_by_session_workflow_and_status"),
    (trios.RemembersTheFirstStatus, "test_the_newest_are_chosen_by_what_their_metas_say_now"),
    (trios.ChoosesNoDamage, "test_a_damaged_one_is_among_the_newest_and_fits_no_workflow"),
    (trios.CountsWhatItIsAsked, "test_a_list_is_deleted_and_what_was_there_is_counted"),
    (trios.CountsBeforeItDeletes, "test_what_several_delete_at_once_is_counted_once"),
    (trios.StopsAtTheFirstGap, "test_a_list_is_deleted_and_what_was_there_is_counted"),
    (trios.LooksWhenItComesToIt, "test_a_list_with_something_that_is_no_checkpoint_deletes_nothing"),
    (trios.KeepsPartsOfLists, "test_parts_of_a_deleted_trio_do_not_come_back"),
]
ON_DISK: list[tuple[type[LocalStore | SqliteStore], str]] = [
    (folders.WritesBehind, "test_what_was_confirmed_survives_a_kill"),
    (folders.ForgetsDurableFrames, "test_what_was_confirmed_survives_a_kill"),
    (folders.WritesOverFiles, "test_a_writer_that_is_killed_leaves_the_former_trios"),
    (folders.KnowsItsOwnEpochs, "test_an_owner_that_was_stopped_and_taken_over_writes_nothing_when_it_wakes"),
    (trios.DeletesTheEndFirst, "test_who_is_killed_while_it_deletes_a_list_leaves_its_end"),
    (folders.DeletesInTheWrongOrder, "test_what_is_put_and_deleted_at_once_is_whole_or_gone"),
    (folders.HoldsForEver, "test_the_session_of_a_killed_process_becomes_free"),
    (folders.LastsThroughForks, "test_a_forked_child_owns_nothing"),
]


# GraflowError: a store that says itself that something is missing, corrupt or busy.
CONVICTION = (AssertionError, pytest.fail.Exception, GraflowError)


class Impatient(StoreContract, FencingContract, ProcessContract, FencingProcessContract):
    """The tests to convict with. Not collected: they run on the broken stores only."""

    patience = 0.4
    lease_seconds = 0.1


def convict(opener: Opener, test: str, snapshot: Snapshot) -> None:
    """Run one test of the contract as pytest does, with each of its parameters, in an empty place."""
    for run in runs_of(Impatient(), test):
        empty = snapshot()
        run(*([opener, snapshot] if "snapshot" in inspect.signature(run).parameters else [opener]))
        empty()


def runs_of(suite: Contract, test: str) -> list[Callable[..., None]]:
    """The test with each of its parameters."""
    method: Callable[..., None] = getattr(suite, test)
    marks = [mark.args for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
    each = product(*([(name, value) for value in values] for name, values in marks))
    return [partial(method, **dict(arguments)) for arguments in each]


def named(case: object) -> str:
    return case.__name__ if isinstance(case, type) else ""


@pytest.mark.parametrize(("broken", "test"), IN_MEMORY, ids=named)
def test_a_broken_store_is_convicted(broken: type[MemoryStore], test: str) -> None:
    place = "memory://broken"
    for kind in (MemoryStore, broken):
        MemoryStore(place).forget()
        if kind is MemoryStore:
            convict(partial(kind, place), test, in_memory(place))
        else:
            with pytest.raises(CONVICTION):
                convict(partial(kind, place), test, in_memory(place))
    MemoryStore(place).forget()


@pytest.mark.parametrize(("broken", "test"), ON_DISK, ids=named)
def test_a_store_that_is_wrong_about_processes_is_convicted(
    broken: type[LocalStore | SqliteStore], test: str, tmp_path: Path
) -> None:
    with pytest.raises(CONVICTION):
        convict(partial(broken, f"{tmp_path}/checkpoints"), test, in_folder(tmp_path / "checkpoints"))


def test_every_broken_store_has_its_test() -> None:
    kinds = {
        kind
        for module in (trios, owners, folders)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and kind.__name__[0] != "_"
    }

    assert kinds == {broken for broken, _ in [*IN_MEMORY, *ON_DISK]}


def test_a_broken_store_is_a_store() -> None:
    store: CheckpointStore = trios.LosesReplacements("memory://broken")

    assert store.url == "memory://broken"


# --- contents --------------------------------------------------------------------------

PLACE = "memory://broken-contents"
OF_CONTENTS: list[tuple[type[contents.Broken], str]] = [
    (contents.KeepsForEver, "test_what_two_hold_stays_until_both_are_deleted"),
    (contents.DeletesWithTheFirst, "test_what_two_hold_stays_until_both_are_deleted"),
    (contents.ForgetsWhatItReplaces, "test_what_is_replaced_lets_go_of_what_the_new_one_does_not_hold"),
    (contents.LooksAndDoesNotHold, "test_what_a_save_has_found_stays_for_it_whoever_deletes_it"),
    (contents.KeepsFailedSaves, "test_a_save_that_fails_leaves_nothing"),
    (contents.ShowsHalves, "test_what_is_being_written_is_not_swept"),
    (contents.LeavesHalves, "test_pieces_that_fail_leave_no_content"),
    (contents.StoresOnePiece, "test_a_content_of_any_size_comes_back"),
    (contents.CommitsWithout, "test_a_meta_that_names_what_is_not_there_is_not_committed"),
    (contents.LosesContentsOfResealed, "test_a_meta_put_alone_keeps_the_contents_of_its_stage"),
    (contents.ReadsWhatOthersHold, "test_contents_of_a_checkpoint_that_is_gone_or_another_one_are_not_found"),
    (contents.HoldsDamaged, "test_what_is_damaged_is_not_held_again_and_its_checkpoint_keeps_it"),
    (contents.SweepsWhatIsBeingWritten, "test_what_is_being_written_is_not_swept"),
]

IN_A_BUCKET = [
    contents.LooksAndDoesNotHold,
    contents.DeletesWithTheFirst,
    contents.CommitsWithout,
    contents.SweepsWhatIsBeingWritten,
]


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    yield
    MemoryStore(PLACE).forget()


def convict_of_contents(opener: Opener, test: str, empty: Callable[[], object]) -> None:
    for run in runs_of(ContentContract(), test):
        empty()
        run(opener)


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize(("broken", "test"), OF_CONTENTS, ids=named)
def test_a_store_that_keeps_contents_badly_is_convicted(broken: type[contents.Broken], test: str) -> None:
    convict_of_contents(partial(MemoryStore, PLACE), test, MemoryStore(PLACE).forget)

    with pytest.raises(CONVICTION):
        convict_of_contents(partial(contents.on(MemoryStore, broken), PLACE), test, MemoryStore(PLACE).forget)


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("test", sorted({test for _, test in OF_CONTENTS}))
def test_nothing_is_wrong_with_what_the_broken_stores_are_made_of(test: str) -> None:
    sound = contents.on(MemoryStore, contents.Broken)
    convict_of_contents(partial(sound, PLACE), test, MemoryStore(PLACE).forget)


@pytest.mark.parametrize("broken", IN_A_BUCKET, ids=named)
def test_a_bucket_that_keeps_contents_badly_is_convicted(
    objects_url: str, broken: type[contents.Broken]
) -> None:
    test, kind = dict(OF_CONTENTS)[broken], contents.on(ObjectStore, broken)
    store, _, options = objects_url.partition("?")
    for number, run in enumerate(runs_of(ContentContract(), test)):
        with pytest.raises(CONVICTION):  # each in a place of its own in the same bucket
            run(partial(kind, f"{store}/{number}?{options}"))


# Of Redis: in each one line of the script is another one; the rest is sound, and with the line as it is the
# test passes. What must not be in a place of several owners is all in there.
LINES = {
    "whatever the head is by now": (
        "if redis.call('GETRANGE', KEYS[at + i], 0, 11) ~= (wanted == '-' and '' or wanted) then",
        "if false then",
        "test_who_has_lost_it_puts_nothing",
    ),
    "who claims at the same time": (
        "if redis.call('GETRANGE', KEYS[at + i], 0, 11) ~= (wanted == '-' and '' or wanted) then",
        "if false then",
        "test_of_many_who_acquire_at_once_one_is_the_owner",
    ),
    "what has begun before somebody else claims": (
        "if redis.call('GETRANGE', KEYS[at + i], 0, 11) ~= (wanted == '-' and '' or wanted) then",
        "if false then",
        "test_a_put_that_began_before_the_loss_ends_without_a_trace",
    ),
    "what is dropped is still listed": (
        "redis.call('ZREM', rows .. fact, key)",
        "redis.call('EXISTS', key)",
        "test_deleting_takes_all_of_it_and_says_whether_it_was_there",
    ),
    "what is put has no row": (
        "if facts ~= '' then",
        "if false then",
        "test_many_are_listed_once_each",
    ),
    "the order of commits": (
        "local number = redis.call('HINCRBY', rows, '', 1)",
        "local number = 1",
        "test_the_newest_come_first_also_between_sessions",
    ),
}


@pytest.mark.parametrize("broken", LINES)
def test_a_script_that_carries_out_batches_badly_is_convicted(
    redis_server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    line, other, test = LINES[broken]
    source = redis_driver.source
    assert [source(name).count(line) for name in ("batch", "find")] == [1, 0]

    opener, snapshot = partial(RedisStore, redis_url), in_redis(redis_server)
    redis_server.ask("FLUSHALL")

    convict(opener, test, snapshot)
    monkeypatch.setattr(redis_driver, "source", lambda name: source(name).replace(line, other))

    def convict_in_time() -> None:
        for _ in range(9):  # what comes between two is a matter of luck
            redis_server.ask("FLUSHALL")
            convict(opener, test, snapshot)

    with pytest.raises(CONVICTION):
        convict_in_time()
