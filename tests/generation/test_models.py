"""Decoding with the real model: any batch, any order, any padding, against the whole prefix computed anew."""

import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.generation.engine.batching import pad_rows
from polyhead.models.seq2seq import Seq2Seq

PAD, BOS, EOS = 0, 1, 2
LENGTHS = [3, 9, 1, 12, 5, 9]


@pytest.fixture(
    params=[
        {},
        {"position": "rope", "n_kv_heads": 2, "norm": "rmsnorm", "norm_first": True},
        {
            "position": "rope",
            "n_layers": 4,
            "layer_pattern": [{"attention": "linear"}, {}, {"block": "lstm"}],
        },
    ],
    ids=["paper", "modern", "hybrid"],
)
def model(request):
    torch.manual_seed(7)
    config = ModelConfig(
        vocab_size=40,
        d_model=32,
        n_heads=4,
        d_ff=48,
        max_len=32,
        tie_embeddings="none",
        **{"n_layers": 2} | request.param,
    )
    model = Seq2Seq(config).eval()
    with torch.no_grad():
        model.head.weight.mul_(4)  # outputs of many lengths, far from ties
    return model


@pytest.fixture
def sources():
    torch.manual_seed(1)
    return [[*torch.randint(5, 40, (n,)).tolist(), EOS] for n in LENGTHS]


def translate(model, sources, limits, beam_size, extra=0):
    tokens, pos = pad_rows(sources, PAD, torch.device("cpu"))
    if extra:  # padding that nobody needs, with tokens that mean something
        pos = torch.arange(tokens.size(1)).expand_as(tokens) if pos is None else pos
        tokens = torch.cat([tokens, torch.full((len(tokens), extra), 7)], 1)
        pos = torch.cat([pos, torch.full((len(pos), extra), -1)], 1)
    given = {"bos_id": BOS, "eos_id": EOS, "max_new_tokens": limits}
    if beam_size == 1:
        return [[h] for h in greedy_search(model, tokens, pos, **given)]
    return beam_search(model, tokens, pos, beam_size=beam_size, n_best=beam_size, **given)


@pytest.mark.acceptance("C1")
@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_sentence_alone_equals_itself_in_any_batch_order_and_padding(model, sources, beam_size):
    limits = [14, 6, 20, 9, 1, 20]
    alone = [translate(model, [s], [n], beam_size)[0] for s, n in zip(sources, limits, strict=True)]
    assert len({len(h.tokens) for found in alone for h in found}) > 3
    for order, extra in (([0, 1, 2, 3, 4, 5], 0), ([5, 3, 1, 0, 2, 4], 4), ([2, 4], 1), ([1, 5], 0)):
        batch = translate(model, [sources[i] for i in order], [limits[i] for i in order], beam_size, extra)
        for i, found in zip(order, batch, strict=True):
            assert [h.tokens for h in found] == [h.tokens for h in alone[i]]
            assert [h.score for h in found] == pytest.approx([h.score for h in alone[i]], abs=1e-5)


def test_log_probabilities_are_those_of_the_teacher_forced_model(model, sources):
    for source in sources:
        for h in translate(model, [source], [20], 4)[0]:
            labels = h.tokens if len(h.tokens) == 20 else [*h.tokens, EOS]
            with torch.no_grad():
                logits = model(torch.tensor([source]), torch.tensor([[BOS, *labels[:-1]]]))
            picked = logits.log_softmax(-1)[0, range(len(labels)), labels]
            assert h.log_prob == pytest.approx(float(picked.sum()), abs=1e-4)
            assert h.score == pytest.approx(h.log_prob / len(labels))


def test_greedy_is_argmax_over_the_whole_prefix_without_cache(model, sources):
    for source in sources:
        [[h]] = translate(model, [source], [20], 1)
        y = [BOS]
        with torch.no_grad():
            while len(y) <= 20 and y[-1] != EOS:
                y.append(int(model(torch.tensor([source]), torch.tensor([y]))[0, -1].argmax()))
        assert h.tokens == [w for w in y[1:] if w != EOS]


@pytest.mark.acceptance("C5")
@pytest.mark.parametrize("limit", [31, 32])
def test_outputs_up_to_the_greatest_length_of_the_model_work(sources, limit):
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=40, d_model=32, n_heads=4, n_layers=1, max_len=32, position="learned")
    model = Seq2Seq(config).eval()
    found = beam_search(
        model,
        torch.tensor(sources[:1]),
        None,
        bos_id=BOS,
        eos_id=EOS,
        beam_size=2,
        max_new_tokens=[limit],
        min_new_tokens=limit,
    )
    assert len(found[0][0].tokens) == limit
