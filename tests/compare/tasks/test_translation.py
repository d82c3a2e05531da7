from pathlib import Path

import pytest
import torch
from tests.compare.compare_helpers import UntrainedTask

from polyhead.compare.tasks.base import score_units
from polyhead.compare.tasks.translation import time_greedy_search
from polyhead.train.tasks.common import seq2seq_features


@pytest.mark.usefixtures("workdir")
def test_sentence_losses_sum_to_training_loss():
    toy = UntrainedTask("toy")
    rows = score_units(toy.model, toy.task.eval_batches("valid"), seq2seq_features)
    with torch.inference_mode():
        loss = toy.task.evaluate(toy.model)["loss"]
    assert sum(row.nll for row in rows) / sum(row.n_tokens for row in rows) == pytest.approx(loss, rel=1e-6)
    scores = toy.run.score(*(Path(f"valid.{side}").read_text().splitlines() for side in ("de", "en")))
    assert [row.nll for row in rows] == pytest.approx([-score.log_prob for score in scores], rel=1e-5)
    assert [row.n_tokens for row in rows] == [score.tokens for score in scores]
    assert time_greedy_search(toy.run, Path("test.de").read_text().splitlines()) > 0
