from pathlib import Path

import pytest
import torch
from tests.compare.compare_helpers import UntrainedTask

from polyhead.compare.tasks.translation import score_validation, time_greedy_search


@pytest.mark.usefixtures("workdir")
def test_sentence_losses_sum_to_training_loss():
    toy = UntrainedTask("toy")
    rows = score_validation(toy.model, toy.task)
    with torch.inference_mode():
        loss = toy.task.evaluate(toy.model)["loss"]
    assert sum(nll for _, nll, _ in rows) / sum(n for _, _, n in rows) == pytest.approx(loss, rel=1e-6)
    assert [line for line, _, _ in rows] == list(range(1, 13))
    scores = toy.run.score(*(Path(f"valid.{side}").read_text().splitlines() for side in ("de", "en")))
    assert [nll for _, nll, _ in rows] == pytest.approx([-score.log_prob for score in scores], rel=1e-5)
    assert [n for _, _, n in rows] == [score.tokens for score in scores]
    assert time_greedy_search(toy.run, Path("test.de").read_text().splitlines()) > 0
