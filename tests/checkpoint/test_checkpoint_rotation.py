import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyhead.checkpoint.checkpoint import list_steps, prune_steps, save_checkpoint, steps_to_delete
from polyhead.core.errors import UserError
from polyhead.train.progress import Progress

SCORES = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-3, 3).map(float))
HISTORIES = st.lists(st.tuples(st.integers(1, 5000), SCORES), min_size=1, max_size=40)
STEPS = st.sets(st.integers(0, 20_000))


@pytest.mark.acceptance("B7")
@given(history=HISTORIES, keep=st.integers(1, 5), higher=st.booleans())
def test_newest_and_best_survive_any_history(history, keep, higher):
    scores, steps = {}, set()
    progress = Progress()
    for stride, score in history:
        progress.step += stride
        scores[progress.step] = score
        steps.add(progress.step)
        progress.record_evaluation(score, higher)
        best_step = progress.best_step  # 0 as long as there is none
        deletions = steps_to_delete(steps, keep, {best_step})
        assert deletions == sorted(deletions) and set(deletions) <= steps
        steps -= set(deletions)
        assert set(sorted(scores)[-keep:]) <= steps and len(steps) <= keep + 1
        finite = [s for s in scores.values() if math.isfinite(s)]
        if finite:
            best_score = max(finite) if higher else min(finite)
            assert best_step == min(s for s in scores if scores[s] == best_score) and best_step in steps
        else:
            assert not best_step


@pytest.mark.acceptance("B7")
@given(steps=STEPS, keep=st.integers(1, 6), best=STEPS)
def test_steps_to_delete_have_keep_higher_steps(steps, keep, best):
    expected = [s for s in steps if s not in best and sum(other > s for other in steps) >= keep]
    assert steps_to_delete(steps, keep, best) == sorted(expected)


@pytest.mark.acceptance("B7")
def test_steps_are_compared_as_numbers(tmp_path):
    assert steps_to_delete([9900, 10000, 800], 1, ()) == [800, 9900]
    assert steps_to_delete([9900, 10000, 800], 2, {None, 800}) == []
    with pytest.raises(UserError, match=r"keep \(0\) must be at least 1"):
        steps_to_delete([1], 0, ())
    save_checkpoint(tmp_path, 90_000, {"model": {"w": torch.zeros(1)}}, {})
    for step in (10, 20, 30):
        save_checkpoint(tmp_path, step, {"model": {"w": torch.zeros(1)}}, {})
        prune_steps(tmp_path, 1)
        assert list_steps(tmp_path) == [step, 90_000]
