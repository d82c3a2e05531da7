import math

import pytest
import torch

from polyhead.lab import recency
from polyhead.lab.registry import LabContext
from polyhead.lab.short_training import make_small_config
from polyhead.lab.tasks import START
from polyhead.models.build import build
from polyhead.nn.loss import IGNORE_INDEX


def test_the_marked_token_is_the_label_from_its_place_on():
    batch = recency.LATCH_TASK.batch(1, 0, 50)
    assert (batch.source == START).all()
    places = set()
    for target, labels in zip(batch.target.tolist(), batch.labels.tolist(), strict=True):
        (place,) = [t for t, token in enumerate(target) if 2 <= token < 10]
        assert labels == [IGNORE_INDEX] * place + [target[place]] * (32 - place)
        assert all(10 <= token < 18 for t, token in enumerate(target) if t != place)
        places.add(place)
    assert len(places) > 10


class Guesser(torch.nn.Module):
    """Answers rightly up to some distance, and with a token that is no value beyond it."""

    def __init__(self, task, distance):
        super().__init__()
        self.task, self.distance = task, distance


def test_recall_is_counted_by_distance(monkeypatch):
    def features(model, batch):
        labels = batch.labels
        out = torch.zeros(*labels.shape, recency.LATCH_TASK.vocab_size)
        for b, row in enumerate(labels.tolist()):
            place = next(t for t, label in enumerate(row) if label != IGNORE_INDEX)
            for t in range(place, len(row)):
                out[b, t, row[t] if t - place <= model.distance else 0] = 1
        return out

    monkeypatch.setattr(recency, "seq2seq_features", features)
    model = Guesser(recency.LATCH_TASK, 5)
    model.head = torch.nn.Identity()
    found = recency.measure_recall(model, recency.LATCH_TASK, 4)
    assert found == [1.0] * 6 + [0.0] * 26


def test_gradients_are_those_of_the_answer_by_distance():
    """Against a difference quotient of one embedding, and for a CNN 0 beyond the 5 tokens that it sees."""
    task = recency.LATCH_TASK._replace(rows=2)
    config = make_small_config(task, **recency._DESIGNS["RNN"])
    model = build(config, 1).double()
    found = recency.measure_gradient_by_distance(model, task, 1)
    batch = task.batch(1, 0)
    embedding, at = model.decoder_embedding, 30  # distance 1
    wanted = []
    for b in range(2):
        grad = []
        for feature in range(config.d_model):
            ends = []
            for step in (-1e-4, 1e-4):
                shift = torch.zeros(2, 32, config.d_model, dtype=torch.double)
                shift[b, at, feature] = step
                handle = embedding.register_forward_hook(lambda _, __, out, shift=shift: out + shift)
                with torch.no_grad():
                    ends.append(model(batch.source, batch.target)[b, -1, batch.labels[b, -1]].item())
                handle.remove()
            grad.append((ends[1] - ends[0]) / 2e-4)
        wanted.append(math.hypot(*grad))
    assert found[1] == pytest.approx(sum(wanted) / 2, rel=1e-4)
    cnn = build(make_small_config(task, **recency._DESIGNS["CNN"]), 1)
    seen = [gradient > 0 for gradient in recency.measure_gradient_by_distance(cnn, task, 1)]
    assert seen == [True] * 5 + [False] * 27


def test_verdicts_follow_the_numbers():
    """Seeds that agree: a network that recalls 4 tokens, and others that recall all, CNN by chance."""
    flat, near, chance = [1.0] * 32, [1.0] * 5 + [0.2] * 27, [1.0] * 5 + [0.125] * 27
    recall = {"Transformer": [flat] * 3, "RNN": [near] * 3, "LSTM": [flat] * 3, "GRU": [flat] * 3}
    recall["CNN"] = [chance] * 3
    decays = {"Transformer": 1.0, "RNN": 0.5, "LSTM": 0.9, "GRU": 0.8, "CNN": 0.1}
    gradients = {name: [[base**d for d in range(32)]] * 3 for name, base in decays.items()}
    claims = recency.make_claims(recall, gradients)
    assert [claim.is_supported for claim in claims] == [True] * 6
    assert "RNN 10^(-9.03 ± 0) times" in claims[0].measurement  # 0.5^30
    assert "RNN: 100 ± 0 % correct at distances 1 to 4, 20 ± 0 % at 24 to 31" in claims[3].measurement
    rising = [0.5] * 5 + [1.0] * 27
    worse = recency.make_claims(recall | {"RNN": [rising] * 3}, gradients | {"RNN": [[1.0] * 32] * 3})
    assert [claim.is_supported for claim in worse] == [False, False, True, False, None, True]


@pytest.mark.slow
def test_a_quick_measurement_has_all_designs():
    found = recency.measure_recency(LabContext(quick=True))
    assert len(found.claims) == 6
    for figure in found.figures:
        assert {curve.name for curve in figure.curves} == {"Transformer", "RNN", "LSTM", "GRU", "CNN"}
