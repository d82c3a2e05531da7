"""Rotation never deletes the newest, the best or everything, whatever the history."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead.checkpoint.checkpoint_rotation import steps_to_delete
from polyhead.core.errors import UserError
from polyhead.train.progress import Progress

SCORES = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-3, 3).map(float))
HISTORIES = st.lists(st.tuples(st.integers(1, 5000), SCORES), min_size=1, max_size=40)


@pytest.mark.acceptance("B7")
@given(history=HISTORIES, keep=st.integers(1, 5), higher=st.booleans())
def test_the_newest_and_the_best_stay_through_any_history(history, keep, higher):
    scores: dict[int, float] = {}
    there: set[int] = set()
    progress = Progress()
    for stride, score in history:
        progress.step += stride
        scores[progress.step] = score
        there.add(progress.step)
        progress.record_evaluation(score, higher)
        best = progress.best_step  # 0 as long as there is none
        doomed = steps_to_delete(there, keep, {best})
        assert doomed == sorted(doomed)
        assert set(doomed) <= there
        there -= set(doomed)

        assert set(sorted(scores)[-keep:]) <= there
        assert len(there) <= keep + 1
        finite = [s for s in scores.values() if math.isfinite(s)]
        if finite:
            wanted = max(finite) if higher else min(finite)
            assert best == min(s for s in scores if scores[s] == wanted)
            assert best in there
        else:
            assert not best


@pytest.mark.acceptance("B7")
@given(
    steps=st.sets(st.integers(0, 20_000)), keep=st.integers(1, 6), protected=st.sets(st.integers(0, 20_000))
)
def test_what_goes_is_what_a_count_from_above_says(steps, keep, protected):
    doomed = [s for s in steps if s not in protected and sum(other > s for other in steps) >= keep]
    assert steps_to_delete(steps, keep, protected) == sorted(doomed)


def test_numbers_are_not_compared_as_text():
    assert steps_to_delete([9900, 10000, 800], 1, ()) == [800, 9900]
    assert steps_to_delete([9900, 10000, 800], 2, {None, 800}) == []


def test_nothing_can_be_asked_to_be_kept_by_none():
    with pytest.raises(UserError, match=r"keep \(0\) must be at least 1"):
        steps_to_delete([1], 0, ())


@pytest.mark.acceptance("B7")
def test_a_checkpoint_of_an_older_run_with_a_higher_step_costs_the_new_one_nothing(tmp_path: Path):
    import torch

    from polyhead.checkpoint.checkpoint import list_steps, prune_steps, save_checkpoint

    save_checkpoint(tmp_path, 90_000, {"model": {"w": torch.zeros(1)}}, {})
    for step in (10, 20, 30):
        save_checkpoint(tmp_path, step, {"model": {"w": torch.zeros(1)}}, {})
        prune_steps(tmp_path, 1)
        assert list_steps(tmp_path) == [step, 90_000]
