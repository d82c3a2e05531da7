import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from tests.lab.caches_helpers import model

from polyhead import Choice
from polyhead.cache.policies import Policy
from polyhead.lab.cache_claims import lossless_claim
from polyhead.lab.divergence import decode_greedy, kl_divergence, measure_divergence, token_agreement
from polyhead.lab.eval_rows import EvalRows
from polyhead.nn.loss import IGNORE_INDEX

ONE = Fraction(1)


def some_rows(n=3, length=12):
    ids = torch.randint(3, 40, (n, length + 1), generator=torch.Generator().manual_seed(0))
    return EvalRows(ids[:, :-1], torch.arange(length).expand(n, -1), ids[:, 1:])


def ragged_pairs():
    """Three targets of 7, 4 and 1 tokens, with sources of 5, 3 and 5."""
    draw = torch.Generator().manual_seed(0)
    read, wanted, source = (torch.randint(3, 40, (3, n), generator=draw) for n in (7, 7, 5))
    lengths, sources = torch.tensor([[7], [4], [1]]), torch.tensor([[5], [3], [5]])
    at, back = torch.arange(7), torch.arange(5)
    return EvalRows(read, torch.where(at < lengths, at, -1), wanted.masked_fill(at >= lengths, IGNORE_INDEX),
        source,
                torch.where(back < sources, back, -1))  # fmt: skip


def test_the_divergence_is_that_of_the_definition():
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    wanted = [0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), math.log(2)]
    assert kl_divergence(p.log(), q.log()).tolist() == pytest.approx(wanted, rel=1e-6)
    assert kl_divergence(q.log(), q.log()).tolist() == [0.0, 0.0]


def test_what_keeps_everything_diverges_by_nothing():
    chosen = [Policy(name, ONE, Choice(name)) for name in ("static", "growing", "paged")]
    found, _ = measure_divergence(model(), chosen, some_rows())
    for one in found.values():
        assert max(one.kl) < 1e-11
        assert one.top1_agreement == [1.0] * 3
    assert lossless_claim(found, list(found)).is_supported is True


def test_perplexity_is_that_of_the_whole_forward_pass():
    lm, read = model(), some_rows()
    found, plain = measure_divergence(lm, [Policy("static", ONE, Choice("static"))], read)
    loss = F.cross_entropy(
        lm(read.input_ids).detach().flatten(0, 1), read.labels.flatten(), reduction="none"
    ).view(3, -1)
    assert plain.nll == pytest.approx(loss.mean(1).tolist(), rel=1e-5)
    assert plain.perplexity == pytest.approx(float(loss.mean().exp()), rel=1e-5)
    assert found["static"].nll == pytest.approx(plain.nll, rel=1e-5)


def test_padding_of_a_translator_counts_nowhere():
    translator, read = model("encoder-decoder"), ragged_pairs()
    found, plain = measure_divergence(translator, [Policy("static", ONE, Choice("static"))], read)
    assert found["static"].token_counts == plain.token_counts == [7, 4, 1]
    for i, n in enumerate(plain.token_counts):  # each pair alone, cut to what it is
        s = int((read.source_pos[i] >= 0).sum())
        logits = translator(read.source[i : i + 1, :s], read.input_ids[i : i + 1, :n]).detach()
        wanted = F.cross_entropy(logits[0], read.labels[i, :n])
        assert plain.nll[i] == pytest.approx(float(wanted), rel=1e-4)
    total = sum(a * n for a, n in zip(plain.nll, plain.token_counts, strict=True)) / 12
    assert plain.perplexity == pytest.approx(math.exp(total))
    assert max(found["static"].kl) < 1e-11


def test_a_window_diverges_as_a_model_whose_attention_has_it():
    lm, read = model(), some_rows()
    narrow = model(attention={"name": "softmax", "window": 4, "sink": 1})
    narrow.load_state_dict(lm.state_dict())
    found, _ = measure_divergence(lm, [Policy("window", ONE, Choice("window", window=4, sink=1))], read)
    p, q = (m(read.input_ids).detach().double().log_softmax(-1) for m in (lm, narrow))
    wanted = F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    assert float(wanted.max()) > 1e-3  # it does make a difference
    assert found["window"].kl == pytest.approx(wanted.mean(1).tolist(), rel=1e-4)
    assert found["window"].kl_by_position.tolist() == pytest.approx(
        wanted.mean(0).tolist(), rel=1e-4, abs=1e-9
    )
    same = (p.argmax(-1) == q.argmax(-1)).double().mean(1).tolist()
    assert found["window"].top1_agreement == pytest.approx(same)


def test_the_divergence_by_place_leaves_padding_out():
    translator, read = model("encoder-decoder"), ragged_pairs()
    found, _ = measure_divergence(
        translator, [Policy("window", ONE, Choice("window", window=1, sink=0))], read
    )
    one = found["window"]
    reach = torch.tensor([3, 2, 2, 2, 1, 1, 1])  # texts of 7, 4 and 1 tokens
    assert float((one.kl_by_position * reach).sum()) == pytest.approx(
        sum(kl * n for kl, n in zip(one.kl, one.token_counts, strict=True))
    )
    assert float(one.kl_by_position[1:].min()) > 0
    assert len(one.kl_by_position) == 7


def test_bytes_are_those_of_the_closed_form():
    found, _ = measure_divergence(
        model(), [Policy("window", ONE, Choice("window", window=4, sink=1))], some_rows()
    )
    held = found["window"].memory
    assert held is not None
    # 3 rows of 5 slots: keys and values of 2 layers, 2 heads of 8 numbers of 4 bytes; the position once
    assert held.used_bytes == held.peak_bytes == 3 * 5 * (2 * 2 * 2 * 8 * 4 + 8)


def test_texts_go_on_as_by_the_whole_forward_pass():
    lm, prompts = model(), some_rows(2, 6).input_ids
    seen = prompts
    for _ in range(5):
        seen = torch.cat([seen, lm(seen)[:, -1].argmax(-1, keepdim=True)], 1)
    assert decode_greedy(lm, Choice("paged", block_size=2), prompts, 5).tolist() == seen[:, 6:].tolist()


def test_equal_tokens_are_counted_place_by_place():
    assert token_agreement([[1, 2, 3], [1], [], [4, 5]], [[1, 9, 3, 7], [1], [], [5, 4]]) == [
        0.5,
        1.0,
        1.0,
        0.0,
    ]
