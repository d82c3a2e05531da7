import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from tests.lab.caches_helpers import model

from polyhead import Choice
from polyhead.cache.policies import Policy
from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab.divergence import (
    Divergence,
    decode_greedy,
    format_change,
    kl_divergence,
    loss_changes,
    lossless_claim,
    make_cache_claims,
    measure_divergence,
    token_agreement,
)
from polyhead_lab.models import EvalRows


def make_rows(n=3, length=12):
    ids = torch.randint(3, 40, (n, length + 1), generator=torch.Generator().manual_seed(0))
    return EvalRows(ids[:, :-1], torch.arange(length).expand(n, -1), ids[:, 1:])


def make_ragged_pairs():
    """Three targets of 7, 4 and 1 tokens, with sources of 5, 3 and 5."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels, source = (torch.randint(3, 40, (3, n), generator=generator) for n in (7, 7, 5))
    lengths, source_lengths = torch.tensor([[7], [4], [1]]), torch.tensor([[5], [3], [5]])
    pos, source_pos = torch.arange(7), torch.arange(5)
    labels = labels.masked_fill(pos >= lengths, IGNORE_INDEX)
    source_pos = torch.where(source_pos < source_lengths, source_pos, -1)
    return EvalRows(inputs, torch.where(pos < lengths, pos, -1), labels, source, source_pos)


def measure(model, rows, **caches):
    policies = [Policy(name, Fraction(1), Choice(name, **options)) for name, options in caches.items()]
    return measure_divergence(model, policies, rows)


def test_kl_divergence_and_agreement_match_definitions():
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    expected = [0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), math.log(2)]
    assert kl_divergence(p.log(), q.log()).tolist() == pytest.approx(expected, rel=1e-6)
    assert kl_divergence(q.log(), q.log()).tolist() == [0.0, 0.0]
    agreement = token_agreement([[1, 2, 3], [1], [], [4, 5]], [[1, 9, 3, 7], [1], [], [5, 4]])
    assert agreement == [0.5, 1.0, 1.0, 0.0]


def test_lossless_caches_match_forward_pass():
    lm, rows = model(), make_rows()
    results, plain = measure(lm, rows, static={}, growing={}, paged={})
    for result in results.values():
        assert max(result.kl) < 1e-11
        assert result.top1_agreement == [1.0] * 3
    assert lossless_claim(results, list(results)).is_supported is True
    logits = lm(rows.input_ids).detach()
    loss = F.cross_entropy(logits.flatten(0, 1), rows.labels.flatten(), reduction="none").view(3, -1)
    assert plain.nll == pytest.approx(loss.mean(1).tolist(), rel=1e-5)
    assert plain.perplexity == pytest.approx(float(loss.mean().exp()), rel=1e-5)
    assert results["static"].nll == pytest.approx(plain.nll, rel=1e-5)


def test_padding_of_translator_is_ignored():
    translator, rows = model("encoder-decoder"), make_ragged_pairs()
    results, plain = measure(translator, rows, static={}, window={"window": 1, "sink": 0})
    static, window = results["static"], results["window"]
    assert static.token_counts == plain.token_counts == [7, 4, 1]
    for i, n in enumerate(plain.token_counts):  # each pair separately, without padding
        s = int((rows.source_pos[i] >= 0).sum())
        logits = translator(rows.source[i : i + 1, :s], rows.input_ids[i : i + 1, :n]).detach()
        expected = F.cross_entropy(logits[0], rows.labels[i, :n])
        assert plain.nll[i] == pytest.approx(float(expected), rel=1e-4)
    total = sum(a * n for a, n in zip(plain.nll, plain.token_counts, strict=True)) / 12
    assert plain.perplexity == pytest.approx(math.exp(total))
    assert max(static.kl) < 1e-11
    n_texts = torch.tensor([3, 2, 2, 2, 1, 1, 1])  # at each position of texts of 7, 4 and 1 tokens
    total = sum(kl * n for kl, n in zip(window.kl, window.token_counts, strict=True))
    assert float((window.kl_by_position * n_texts).sum()) == pytest.approx(total)
    assert float(window.kl_by_position[1:].min()) > 0
    assert len(window.kl_by_position) == 7


def test_window_cache_matches_window_attention():
    lm, rows = model(), make_rows()
    window_model = model(attention={"name": "softmax", "window": 4, "sink": 1})
    window_model.load_state_dict(lm.state_dict())
    result = measure(lm, rows, window={"window": 4, "sink": 1})[0]["window"]
    p, q = (m(rows.input_ids).detach().double().log_softmax(-1) for m in (lm, window_model))
    kl = F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    assert float(kl.max()) > 1e-3
    assert result.kl == pytest.approx(kl.mean(1).tolist(), rel=1e-4)
    assert result.kl_by_position.tolist() == pytest.approx(kl.mean(0).tolist(), rel=1e-4, abs=1e-9)
    agreement = (p.argmax(-1) == q.argmax(-1)).double().mean(1).tolist()
    assert result.top1_agreement == pytest.approx(agreement)
    # 3 rows of 5 slots: keys and values of 2 layers, 2 heads of 8 numbers of 4 bytes; the position once
    n_bytes = 3 * 5 * (2 * 2 * 2 * 8 * 4 + 8)
    assert (result.memory.used_bytes, result.memory.peak_bytes) == (n_bytes, n_bytes)


def test_greedy_decoding_matches_forward_pass():
    lm, prompts = model(), make_rows(2, 6).input_ids
    ids = prompts
    for _ in range(5):
        ids = torch.cat([ids, lm(ids)[:, -1].argmax(-1, keepdim=True)], 1)
    assert decode_greedy(lm, Choice("paged", block_size=2), prompts, 5).tolist() == ids[:, 6:].tolist()


COUNTS = [5, 5, 5]
PLAIN = Divergence(nll=[1.0, 1.1, 0.9], token_counts=COUNTS)
BAD = Divergence(kl=[0.5, 0.6, 0.55], nll=[2.0, 2.1, 1.9], top1_agreement=[0.5] * 3, token_counts=COUNTS)
GOOD = Divergence(kl=[1e-9] * 3, nll=PLAIN.nll, top1_agreement=[1.0] * 3, token_counts=COUNTS)


@pytest.mark.parametrize(("results", "verdict"), [((GOOD, BAD, GOOD), True), ((BAD, GOOD, BAD), False)])
def test_claims_follow_from_divergence(results, verdict):
    """The static cache is exact, a window breaks the model, a sink is better, and keeps the loss."""
    names = ("static", "window 1/4", "window+sink 1/4")
    static, *windows = (Policy(name, Fraction(1), Choice("window")) for name in names)
    policies = [static._replace(family="static"), *windows]
    claims = make_cache_claims(policies, dict(zip(names, results, strict=True)), PLAIN)
    assert [claim.is_supported for claim in claims] == [verdict] * 4


def test_loss_changes_and_their_text():
    assert loss_changes(BAD, PLAIN) == pytest.approx([1.0] * 3)
    assert format_change([math.log(1.5)] * 2).startswith("+50 ")
    assert format_change([math.log(3)] * 2).startswith("+200 ")
    assert format_change([1e-9, -1e-9]) == "none"
    # the mean of the changes is the change of the perplexity
    a, b = (Divergence(nll=nll, token_counts=[9, 1]) for nll in ([2.0, 1.1], [1.5, 1.4]))
    assert sum(loss_changes(a, b)) / 2 == pytest.approx(math.log(a.perplexity / b.perplexity))
