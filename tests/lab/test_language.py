import math

import numpy as np
import pytest
import torch

from polyhead.models.build import build
from polyhead_lab import language, norms
from polyhead_lab.short_training import make_small_config
from polyhead_lab.text_task import make_text_task


@pytest.fixture(scope="module")
def text():
    return make_text_task(12, 4)


def test_power_law_fit_recovers_exponent():
    losses = {n: [5.0 * n**-0.3 + 1.2] * 2 for n in (100, 1000, 10_000, 100_000)}
    assert language.fit_power_law(losses) == pytest.approx((5.0, 0.3, 1.2), abs=0.05)
    assert language.bootstrap_exponent(losses, 1) == pytest.approx((0.3, 0.3), abs=0.01)
    noisy = {n: [loss - 0.02, loss + 0.02] for n, (loss, _) in losses.items()}
    low, high = language.bootstrap_exponent(noisy, 1)
    assert low < 0.29 < 0.31 < high


def test_gradients_without_residual_match_autograd(text):
    changes = {**language._RESIDUALS["no residual"], "n_heads": 2}
    model = build(make_small_config(text, n_layers=3, **changes), 1)
    batch = text.batch(1, 0)
    x = model.embedding(batch.target, None)
    for layer in model.stack.layers:
        x = layer.attn(layer.attn_residual.norm(x))
        x = layer.ffn(layer.ffn_residual.norm(x))
    logits = model.head(model.stack.final_norm(x))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
    expected = []
    for layer in model.stack.layers:
        grads = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
        expected.append(float(torch.cat([grad.flatten() for grad in grads]).norm()))
    assert norms.measure_gradients(3, 1, changes, text) == pytest.approx(expected, rel=1e-4)


def test_unprojected_scores_are_products_of_tokens(text):
    changes = {**language._SIMILARITIES["no projections"], "position": "none"}
    attention = build(make_small_config(text, **changes), 1).stack.layers[0].attn
    x = torch.randn(2, 5, 64)
    heads = x.view(2, 5, 4, 16).transpose(1, 2)
    weights = (heads @ heads.mT / 4).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf).softmax(-1)
    values = attention.v_proj(x).view(2, 5, 4, 16).transpose(1, 2)
    expected = attention.o_proj((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected)


def test_head_distances_of_known_weights(text):
    one, even, other = torch.eye(4)[0], torch.full((4,), 0.25), torch.eye(4)[3]
    maps = torch.stack([one, even, other]).view(1, 3, 1, 1, 4)
    distances = [[0.0, 0.75, 1.0], [0.75, 0.0, 0.75], [1.0, 0.75, 0.0]]
    assert language.head_distances(maps, maps)[0].tolist() == distances
    assert language.mean_distance(maps) == pytest.approx(2.5 / 3)
    assert language.nearest_distance(maps, maps) == pytest.approx(0.75)
    model = build(make_small_config(text), 1)
    maps = language.collect_maps(model, text)
    assert maps.shape == (2, 4, 4, 12, 12)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 4, 4, 12))


def test_only_batch_statistics_depend_on_other_rows(text):
    assert language.measure_noise(text, "layernorm", 3, 1) == 0.0
    few, many = (language.measure_noise(text, "batchnorm", rows, 1) for rows in (2, 64))
    assert few > many > 0.0


def test_word_order_is_ranked_by_likelihood(text):
    rows = text.batch(1, 0, 60).target.numpy()
    shuffled = language.shuffle_inner_words(rows)
    assert (np.sort(rows) == np.sort(shuffled)).all() and (rows != shuffled).any()
    models = [build(make_small_config(text), seed).eval() for seed in (1, 2, 3)]

    def score(model, row):
        logits = model(torch.from_numpy(row)[None])[0].double().detach()
        return sum(float(x[token] - x.logsumexp(0)) for x, token in zip(logits[:-1], row[1:], strict=True))

    pairs = [(a, b) for a, b in zip(rows, shuffled, strict=True) if (a != b).any()]
    right = [sum(score(model, a) > score(model, b) for a, b in pairs) / len(pairs) for model in models]
    assert [language.rank_word_order(model, rows) for model in models] == pytest.approx(right)
    assert set(right) != {0.5}
