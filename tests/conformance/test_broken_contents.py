"""Stores that keep contents badly, each convicted by the test that is named for it; see test_broken.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.testing import ContentContract, Opener
from tests.conformance import broken_buckets as buckets
from tests.conformance import broken_contents as contents
from tests.conformance.test_broken import CONVICTION, named, parameters_of

PLACE = "memory://broken-contents"
CASES: list[tuple[type[MemoryStore], str]] = [
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
]

IN_A_BUCKET: list[tuple[type[ObjectStore], str]] = [
    (buckets.LooksAndDoesNotPin, "test_what_a_save_has_found_stays_for_it_whoever_deletes_it"),
    (buckets.DeletesWithTheFirst, "test_what_two_hold_stays_until_both_are_deleted"),
    (buckets.CommitsWithout, "test_a_meta_that_names_what_is_not_there_is_not_committed"),
    (buckets.SweepsWhatIsBeingWritten, "test_what_is_being_written_is_not_swept"),
]


class InSession(ContentContract):
    sharing = "session"


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    contents._kept.clear()
    MemoryStore(PLACE).forget()


def convict(opener: Opener, test: str) -> None:
    method: Callable[..., None] = getattr(ContentContract(), test)
    for arguments in parameters_of(method):
        MemoryStore(PLACE).forget()
        method(opener, **arguments)


@pytest.mark.parametrize(("broken", "test"), CASES, ids=named)
def test_a_store_that_keeps_contents_badly_is_convicted(broken: type[MemoryStore], test: str) -> None:
    convict(partial(MemoryStore, PLACE), test)

    with pytest.raises((*CONVICTION, KeyError)):
        convict(partial(broken, PLACE), test)


@pytest.mark.parametrize("test", sorted({test for _, test in CASES}))
def test_nothing_is_wrong_with_what_the_broken_stores_are_made_of(test: str) -> None:
    convict(partial(contents.Broken, PLACE), test)


@pytest.mark.parametrize(("broken", "test"), IN_A_BUCKET, ids=named)
def test_a_bucket_that_keeps_contents_badly_is_convicted(
    objects_url: str, broken: type[ObjectStore], test: str
) -> None:
    method: Callable[..., None] = getattr(InSession(), test)
    for number, arguments in enumerate(parameters_of(method)):
        with pytest.raises(CONVICTION):
            method(partial(broken, place(objects_url, number)), **arguments)


def place(url: str, number: int) -> str:
    """One of its own in the same bucket."""
    store, _, options = url.partition("?")
    return f"{store}/{number}?{options}"
