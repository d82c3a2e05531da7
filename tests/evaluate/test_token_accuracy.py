import math

import pytest
import torch

from polyhead.evaluate.perplexity import TokenLoss, token_losses
from polyhead.nn.embedding import Head


def test_accuracy_and_perplexity_without_ignored_labels():
    features = torch.tensor([[3.0, 0, 0, 0], [0, 3.0, 0, 0], [0, 0, 3.0, 0], [1.0, 0, 0, 0]])
    result = token_losses(features, Head(torch.eye(4)), torch.tensor([0, 2, -100, 0]), chunk=2)
    log_p = features.log_softmax(-1)
    assert (result.n_correct, result.n_tokens) == (2, 3)
    assert result.nll == pytest.approx(-float(log_p[0, 0] + log_p[1, 2] + log_p[3, 0]), rel=1e-5)
    double = TokenLoss.from_parts([result, result])
    assert double.compute_metrics() == result.compute_metrics() | {"loss": pytest.approx(result.nll / 3)}
    assert TokenLoss(2.0, 1, 1).compute_metrics() == {
        "loss": 2.0,
        "ppl": pytest.approx(math.e**2),
        "accuracy": 1,
    }
    assert TokenLoss().compute_metrics() == {"loss": 0.0, "ppl": 1.0, "accuracy": 0.0}
