"""Decoding with real models: any batch, any order, any padding, against recomputation without a cache."""

import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.generation.engine.batching import pad_rows
from polyhead.models.seq2seq import Seq2Seq

PAD, BOS, EOS = 0, 1, 2
LENGTHS = [3, 9, 1, 12, 5, 9]
HYBRID = [{"attention": "linear"}, {}, {"block": "lstm"}]
DESIGNS = {
    "paper": {},
    "modern": {"position": "rope", "n_kv_heads": 2, "norm": "rmsnorm", "norm_first": True},
    "hybrid": {"position": "rope", "n_layers": 4, "layer_pattern": HYBRID},
}


def build_model(**options):
    sizes = {"vocab_size": 40, "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "max_len": 32}
    return Seq2Seq(ModelConfig(**sizes | options)).eval()


@pytest.fixture(params=DESIGNS)
def model(request):
    torch.manual_seed(7)
    model = build_model(tie_embeddings="none", **DESIGNS[request.param])
    with torch.no_grad():
        model.head.weight.mul_(4)  # outputs of many lengths, far from ties
    return model


@pytest.fixture
def sources():
    torch.manual_seed(1)
    return [[*torch.randint(5, 40, (n,)).tolist(), EOS] for n in LENGTHS]


def translate(model, sources, limits, beam_size, n_padding=0):
    tokens, pos = pad_rows(sources, PAD, torch.device("cpu"))
    if n_padding:  # with tokens that mean something
        pos = torch.arange(tokens.size(1)).expand_as(tokens) if pos is None else pos
        tokens = torch.cat([tokens, torch.full((len(tokens), n_padding), 7)], 1)
        pos = torch.cat([pos, torch.full((len(pos), n_padding), -1)], 1)
    options = {"bos_id": BOS, "eos_id": EOS, "max_new_tokens": limits}
    if beam_size == 1:
        return [[h] for h in greedy_search(model, tokens, pos, **options)]
    return beam_search(model, tokens, pos, beam_size=beam_size, n_best=beam_size, **options)


@pytest.mark.acceptance("C1")
@pytest.mark.parametrize("beam_size", [1, 4])
def test_outputs_do_not_depend_on_batch_or_padding(model, sources, beam_size):
    limits = [14, 6, 20, 9, 1, 20]
    single = [translate(model, [s], [n], beam_size)[0] for s, n in zip(sources, limits, strict=True)]
    assert len({len(h.tokens) for row in single for h in row}) > 3
    for order, padding in (([0, 1, 2, 3, 4, 5], 0), ([5, 3, 1, 0, 2, 4], 4), ([2, 4], 1), ([1, 5], 0)):
        batch = translate(model, [sources[i] for i in order], [limits[i] for i in order], beam_size, padding)
        for i, hypotheses in zip(order, batch, strict=True):
            assert [h.tokens for h in hypotheses] == [h.tokens for h in single[i]]
            assert [h.score for h in hypotheses] == pytest.approx([h.score for h in single[i]], abs=1e-5)


@torch.no_grad()
def test_log_probs_equal_teacher_forcing(model, sources):
    for source in sources[:3]:
        for h in translate(model, [source], [20], 4)[0]:
            labels = h.tokens if len(h.tokens) == 20 else [*h.tokens, EOS]
            logits = model(torch.tensor([source]), torch.tensor([[BOS, *labels[:-1]]]))
            log_probs = logits.log_softmax(-1)[0, range(len(labels)), labels]
            assert h.log_prob == pytest.approx(float(log_probs.sum()), abs=1e-4)
            assert h.score == pytest.approx(h.log_prob / len(labels))


@torch.no_grad()
def test_greedy_equals_argmax_without_cache(model, sources):
    for source in sources[:3]:
        [[h]], y = translate(model, [source], [20], 1), [BOS]
        while len(y) <= 20 and y[-1] != EOS:
            y.append(int(model(torch.tensor([source]), torch.tensor([y]))[0, -1].argmax()))
        assert h.tokens == [w for w in y[1:] if w != EOS]


@pytest.mark.acceptance("C5")
@pytest.mark.parametrize("limit", [31, 32])
def test_outputs_may_reach_max_len(sources, limit):
    model, options = (
        build_model(n_layers=1, position="learned"),
        {"bos_id": BOS, "eos_id": EOS, "beam_size": 2},
    )
    options |= {"max_new_tokens": [limit], "min_new_tokens": limit}
    assert len(beam_search(model, torch.tensor(sources[:1]), None, **options)[0][0].tokens) == limit
