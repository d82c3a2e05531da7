import math

import pytest
import torch

from polyhead.models.build import build
from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab import recurrence
from polyhead_lab.short_training import START, make_small_config


def test_item_position_is_that_of_its_key():
    batch = recurrence.RECALL_TASK.batch(1, 0, 5)
    positions = (recurrence.ITEMS - 1 - recurrence.find_item_distances(batch)).tolist()
    rows = zip(batch.source.tolist(), batch.target.tolist(), positions, strict=True)
    for source, target, positions in rows:
        assert [(source[pos] - 2) // 4 for pos in positions] == [key - 2 - 8 * 4 for key in target]


def test_marked_token_is_label_from_its_position():
    batch = recurrence.LATCH_TASK.batch(1, 0, 50)
    assert (batch.source == START).all()
    positions = set()
    for target, labels in zip(batch.target.tolist(), batch.labels.tolist(), strict=True):
        (pos,) = [t for t, token in enumerate(target) if 2 <= token < 10]
        assert labels == [IGNORE_INDEX] * pos + [target[pos]] * (32 - pos)
        assert all(10 <= token < 18 for t, token in enumerate(target) if t != pos)
        positions.add(pos)
    assert len(positions) > 10


def test_recall_is_measured_by_distance(monkeypatch):
    def answer_nearby(model, batch):
        """The right token up to a distance of 5, and another one after it."""
        logits = torch.zeros(*batch.labels.shape, recurrence.LATCH_TASK.vocab_size)
        for b, row in enumerate(batch.labels.tolist()):
            start = next(t for t, label in enumerate(row) if label != IGNORE_INDEX)
            for t in range(start, len(row)):
                logits[b, t, row[t] if t - start <= 5 else 0] = 1
        return logits

    monkeypatch.setattr(recurrence, "seq2seq_features", answer_nearby)
    model = torch.nn.Module()
    model.head = torch.nn.Identity()
    recall = recurrence.measure_recall(model, recurrence.LATCH_TASK, 4, recurrence.find_latch_distances)
    assert recall == [1.0] * 6 + [0.0] * 26


def test_gradients_match_difference_quotient():
    """Of one embedding; of a CNN they are 0 beyond the 5 tokens that it reads."""
    task = recurrence.LATCH_TASK._replace(rows=2)
    config = make_small_config(task, **recurrence._DESIGNS["RNN"])
    model = build(config, 1).double()
    gradients = recurrence.measure_gradient_by_distance(model, task, 1)
    batch, pos = task.batch(1, 0), 30  # distance 1

    def compute_logit(b, feature, step):
        shift = torch.zeros(2, 32, config.d_model, dtype=torch.double)
        shift[b, pos, feature] = step
        handle = model.decoder_embedding.register_forward_hook(lambda _, __, out: out + shift)
        with torch.no_grad():
            logit = model(batch.source, batch.target)[b, -1, batch.labels[b, -1]].item()
        handle.remove()
        return logit

    norms = []
    for b in range(2):
        pairs = [[compute_logit(b, i, step) for step in (1e-4, -1e-4)] for i in range(config.d_model)]
        norms.append(math.hypot(*((high - low) / 2e-4 for high, low in pairs)))
    assert gradients[1] == pytest.approx(sum(norms) / 2, rel=1e-4)
    cnn = build(make_small_config(task, **recurrence._DESIGNS["CNN"]), 1)
    gradients = recurrence.measure_gradient_by_distance(cnn, task, 1)
    assert [gradient > 0 for gradient in gradients] == [True] * 5 + [False] * 27


def test_claims_follow_from_recall_and_gradients():
    """A network that recalls 4 tokens, three that recall all, and a CNN at chance beyond 4."""
    flat, near_recall, chance = [1.0] * 32, [1.0] * 5 + [0.2] * 27, [1.0] * 5 + [0.125] * 27
    recall = {"Transformer": flat, "RNN": near_recall, "LSTM": flat, "GRU": flat, "CNN": chance}
    recall = {name: [values] * 3 for name, values in recall.items()}
    decays = {"Transformer": 1.0, "RNN": 0.5, "LSTM": 0.9, "GRU": 0.8, "CNN": 0.1}
    gradients = {name: [[base**d for d in range(32)]] * 3 for name, base in decays.items()}
    claims = recurrence.make_claims(recall, gradients)
    assert [claim.is_supported for claim in claims] == [True] * 6
    assert "RNN 10^(-9.03 ± 0) times" in claims[0].measurement  # 0.5^30
    assert "RNN: 100 ± 0 % correct at distances 1 to 4, 20 ± 0 % at 24 to 31" in claims[3].measurement
    rising = [[0.5] * 5 + [1.0] * 27] * 3
    claims = recurrence.make_claims(recall | {"RNN": rising}, gradients | {"RNN": [[1.0] * 32] * 3})
    assert [claim.is_supported for claim in claims] == [False, False, True, False, None, True]
