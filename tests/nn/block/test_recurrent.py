"""Recurrent blocks against the equations written out, and torch's layers run row by row."""

import copy

import pytest
import torch
from torch import nn

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import BLOCK
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.kernels.pack_model import can_pack, pack_model
from polyhead.models import build
from polyhead.nn.block.recurrent import LSTM, RecurrentMemory
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead.nn.validate_model import check_model

C = 6
SIZES = {
    "vocab_size": 23,
    "d_model": C,
    "n_heads": 2,
    "n_layers": 2,
    "d_ff": 8,
    "max_len": 32,
    "dropout": 0.0,
}
HOLES = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, 0, -1, 1, 2, -1, -1], [-1, -1, -1, 0, 1, 2, 3]])
KINDS = ["rnn", "lstm", "gru"]


def block(name, cross=False, causal=None, **options):
    """One layer in float64 with random weights, no norm."""
    attention = {"name": "softmax", "bias": False}
    config = ModelConfig(**SIZES, norm="none", attention=attention, position="none")
    shape = config.attention_shape(cross if causal is None else causal)
    torch.manual_seed(0)
    made = BLOCK.build(Choice(name, **options), config, shape, Position(shape), cross).double()
    with torch.no_grad():
        for p in made.parameters():
            p.normal_(std=0.6)
    return made


def lstm_cell(x, h, c, w, u, b):
    """Hochreiter & Schmidhuber (1997) with forget gate: i, f, g, o of W x + U h + b."""
    i, f, g, o = (w @ x + u @ h + b).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_cell(x, h, w, u, bw, bu):
    """Cho et al. (2014), the reset gate on U h."""
    (wr, wz, wn), (ur, uz, un) = (w @ x + bw).chunk(3), (u @ h + bu).chunk(3)
    r, z = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz)
    return (1 - z) * torch.tanh(wn + r * un) + z * h


def by_hand(rnn, tokens, start):
    """The outputs (T, H) of one row of tokens, and the state at its end, one token at a time."""
    weights = dict(rnn.named_parameters())
    w, u, bw, bu = (weights.get(f"{n}_l0") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    state, outs = start, []
    for x in tokens:
        if bw is None:  # a plain network: Y_i = tanh(X_i W + Y_{i-1} U), without biases
            state = (torch.tanh(x @ w.mT + state[0] @ u.mT),)
        elif len(start) == 2:
            state = lstm_cell(x, *state, w, u, bw + bu)
        else:
            state = (gru_cell(x, *state, w, u, bw, bu),)
        outs.append(state[0])
    return torch.stack(outs), state


def zeros(layer):
    return (torch.zeros(layer.units, dtype=torch.float64),) * layer.rnn.n_states


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("units", [None, 10])
def test_an_encoder_reads_each_row_forward_and_backward(name, units):
    layer, x = block(name, units=units), torch.randn(3, 7, C, dtype=torch.float64)
    assert layer.units == (units or C) // 2
    out = layer(x, HOLES)
    for b in range(3):
        valid = HOLES[b] >= 0
        tokens = x[b][valid]
        forward, _ = by_hand(layer.rnn, tokens, zeros(layer))
        backward, _ = by_hand(layer.reverse, tokens.flip(0), zeros(layer))
        read = torch.cat([forward, backward.flip(0)], 1)
        read = read if units is None else read @ layer.o_proj.weight.mT + layer.o_proj.bias
        torch.testing.assert_close(out[b][valid], tokens + read, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "theirs"), [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_whole_rows_equal_the_bidirectional_layer_of_torch(name, theirs):
    layer, x = block(name), torch.randn(3, 7, C, dtype=torch.float64)
    other = theirs(C, C // 2, bias=name != "rnn", batch_first=True, bidirectional=True).double()
    weights = dict(layer.rnn.named_parameters())
    weights |= {f"{n}_reverse": p for n, p in layer.reverse.named_parameters()}
    other.load_state_dict(weights)
    torch.testing.assert_close(layer(x), x + other(x)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("attention", [True, False])
def test_a_decoder_begins_at_the_ends_of_the_source_and_looks_at_it(name, attention):
    """Luong et al. (2015): the score of a source token is h W s, "general", here with two heads."""
    torch.manual_seed(1)
    layer = block(name, cross=True, attention=attention)
    source, x = torch.randn(3, 7, C, dtype=torch.float64), torch.randn(3, 4, C, dtype=torch.float64)
    pos = torch.tensor([[0, 1, 2, 3], [0, -1, 1, 2], [-1, 0, -1, -1]])
    out = layer(x, pos, memory=layer.project_kv(source, HOLES))
    for b in range(3):
        seen, valid = source[b][HOLES[b] >= 0], pos[b] >= 0
        start = layer.start_proj.weight @ torch.cat([seen[0], seen[-1]]) + layer.start_proj.bias
        begin = (start.tanh(), start) if name == "lstm" else (start.tanh(),)
        read, _ = by_hand(layer.rnn, x[b][valid], begin)
        wanted = x[b][valid] + read
        if attention:
            wanted = torch.stack([h + luong(layer.cross, h, seen) for h in wanted])
        torch.testing.assert_close(out[b][valid], wanted, rtol=0, atol=1e-12)
    assert (layer.cross is not None) == attention


def luong(cross, h, source):
    """Sum over heads of O_k softmax(h W_k s) s, W_k = Q_k^T K_k / sqrt(D)."""
    found, D = torch.zeros(C, dtype=torch.float64), C // 2
    for k in range(2):
        q, key, v = (p.weight[k * D : (k + 1) * D] for p in (cross.q_proj, cross.k_proj, cross.v_proj))
        weights = torch.stack([h @ q.mT @ key @ s / D**0.5 for s in source]).softmax(0)
        context = sum(w * (v @ s) for w, s in zip(weights, source, strict=True))
        found = found + cross.o_proj.weight[:, k * D : (k + 1) * D] @ context
    return found


@pytest.mark.parametrize("name", KINDS)
def test_a_row_without_a_token_gives_zeros_and_no_gradient(name):
    layer = block(name, cross=True, attention=False)
    source = torch.randn(2, 3, C, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 3, C, dtype=torch.float64, requires_grad=True)
    none = torch.full((2, 3), -1)
    memory = layer.project_kv(source, none)
    assert (memory.start_state == layer.start_proj.bias).all()
    read = layer.run_rnn(x, none, None, memory)
    assert (read == 0).all()
    read.sum().backward()
    assert all((p.grad == 0).all() for p in layer.parameters() if p.grad is not None)
    assert (x.grad == 0).all()


@pytest.mark.parametrize("name", KINDS)
def test_the_cache_keeps_the_state_after_the_last_token_of_each_row(name):
    layer = block(name, cross=True, attention=False).float()
    model = build(ModelConfig(**SIZES, block={"name": name, "attention": False}))
    memory = layer.project_kv(torch.randn(3, 5, C), None)
    cache = make_cache(None, model.cache_shape, 3, 8)
    x, pos = torch.randn(3, 4, C), torch.tensor([[0, 1, 2, 3], [-1, 0, -1, 1], [-1, -1, -1, -1]])
    more, then = torch.randn(3, 1, C), torch.tensor([[4], [-1], [0]])
    rows = [torch.cat([x[0], more[0]]), x[1, [1, 3]], more[2]]
    with torch.no_grad():
        for tokens, at in ((x, pos), (more, then)):
            cache.prepare_step(range(3), at)
            layer(tokens, at, cache.layers[0], memory)
        for b in range(3):
            _, wanted = by_hand(
                layer.rnn, rows[b], tuple(s[b] for s in layer.rnn.init_state(memory.start_state))
            )
            for kept, state in zip(cache.layers[0].state, wanted, strict=True):
                torch.testing.assert_close(kept[b], state, rtol=0, atol=1e-6)
    assert layer.state == tuple(s.shape[1:] for s in cache.layers[0].state)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("attention", [True, False])
def test_the_score_of_a_beam_is_its_probability_given_whole(name, attention):
    """Three sentences of different lengths, which finish at different times: memory and states move along."""
    model = build(ModelConfig(**SIZES, block={"name": name, "attention": attention}), seed=3).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.4 * torch.randn_like(p))
    source = torch.randint(5, 23, (3, 7))
    found = beam_search(
        model, source, HOLES, bos_id=1, eos_id=2, beam_size=4, max_new_tokens=[9, 3, 6], n_best=4
    )
    assert {len(best) for best in found} == {4}
    for b, best in enumerate(found):
        tokens = source[b][HOLES[b] >= 0][None]
        for hypothesis in best:
            target = torch.tensor([[1, *hypothesis.tokens, 2]])
            log_p = model(tokens, target[:, :-1]).detach().log_softmax(-1)[0]
            each = log_p.gather(1, target[0, 1:, None])[:, 0]
            sums = (
                float(each.sum()),
                float(each[:-1].sum()),
            )  # with the end of the sentence, or cut before it
            assert min(abs(hypothesis.log_prob - s) for s in sums) < 1e-4


def test_what_a_decoder_keeps_of_the_source_can_be_reordered():
    k = torch.randn(3, 2, 4, 3)
    memory = RecurrentMemory(torch.randn(3, C), KV(k, k + 1, torch.arange(4).expand(3, 1, 4)))
    rows = torch.tensor([2, 0])
    chosen = memory.select(rows).contiguous_for_decoding()
    assert torch.equal(chosen.start_state, memory.start_state[rows])
    assert torch.equal(chosen.kv.v, k[rows] + 1)
    assert chosen.kv.mask.all()
    assert memory._replace(kv=None).select(rows).contiguous_for_decoding().kv is None


@pytest.mark.parametrize("name", KINDS)
def test_the_weights_begin_orthogonal_on_the_state_and_lstms_begin_by_keeping(name):
    model = build(ModelConfig(**SIZES | {"d_model": 32, "vocab_size": 30}, block=name), seed=0)
    layers = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
    assert len(layers) == 2 * 2 + 2
    for rnn in layers:
        for u in rnn.weight_hh_l0.detach().split(rnn.hidden_size):
            torch.testing.assert_close(u @ u.mT, torch.eye(rnn.hidden_size), rtol=0, atol=1e-5)
        bound = (6 / (32 + rnn.hidden_size)) ** 0.5
        assert 0.98 * bound < rnn.weight_ih_l0.abs().max() <= bound
        if name == "rnn":
            assert not rnn.bias
            continue
        forget = slice(rnn.hidden_size, 2 * rnn.hidden_size)
        bias = (rnn.bias_ih_l0 + rnn.bias_hh_l0).detach()
        if name == "lstm":
            assert (bias[forget] == 1).all()
            bias[forget] = 0
        assert (bias == 0).all()


def test_an_lstm_learns_in_bf16_where_the_processor_has_none_for_it(monkeypatch):
    class Without:
        def __getattr__(self, name):
            return (lambda: False) if name == "_is_mkldnn_bf16_supported" else getattr(ops, name)

    ops = torch.ops.mkldnn
    monkeypatch.setattr(torch.ops, "mkldnn", Without())
    layer, x = LSTM(8, 8, batch_first=True), torch.randn(2, 5, 8)
    state = (torch.zeros(2, 8), torch.zeros(2, 8))
    wanted, _ = layer(x, state)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = layer(x, state)
    assert torch.equal(found, wanted), "its products are of fp32 then"
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.skipif(not can_pack(), reason="this build of torch has no packed products")
@pytest.mark.parametrize("name", [*KINDS, "gated_conv"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_packed_model_gives_the_logits_of_the_plain_one(name, dtype):
    model = build(ModelConfig(**SIZES | {"d_model": 32}, block=name), seed=1).eval().to(dtype)
    source, target = torch.randint(5, 23, (3, 7)), torch.randint(5, 23, (3, 5))
    with torch.inference_mode():
        plain = model(source, target, HOLES)
        near = 1e-5 if dtype == torch.float32 else 0.1
        fast = pack_model(copy.deepcopy(model))
        torch.testing.assert_close(fast(source, target, HOLES), plain, atol=near, rtol=near)
        whole = build(model.config, seed=1).eval()(source, target, HOLES)
        torch.testing.assert_close(plain.float(), whole, atol=10 * near, rtol=10 * near)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"block": {"name": "lstm", "units": 7}},
            "units of block 'lstm' is 7.* so it must be even and above 0: 8",
        ),
        ({"block": {"name": "gru", "units": 0}}, "units of block 'gru' is 0"),
        (
            {"block": "lstm", "position": "rope"},
            "position 'rope' acts on self-attention, but blocks lstm have none",
        ),
        (
            {"block": "gru", "decoder_block": "lstm", "position": "rope"},
            "blocks gru and lstm have none: use none",
        ),
        (
            {"decoder_block": "lstm", "decoder_attention": "softmax"},
            "a decoder of block 'lstm' does not have; for att",
        ),
        (
            {"block": {"name": "gru", "attention": False}, "cross_attention": "softmax"},
            "cross_attention is set, but block 'gru' with attention=false has none",
        ),
        ({"block": {"name": "lstm", "bidirectonal": True}}, "did you mean 'bidirectional'"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        check_model(ModelConfig(**SIZES, head_dim=4, **given))


@pytest.mark.parametrize(
    "side", [{"block": "lstm", "decoder_block": "transformer"}, {"decoder_block": "lstm"}]
)
def test_positions_of_attention_are_welcome_where_one_side_has_it(side):
    check_model(ModelConfig(**SIZES | {"d_model": 8}, head_dim=4, position="rope", **side))
    one_way = {"name": "lstm", "bidirectional": False}
    check_model(ModelConfig(**SIZES | {"d_model": 5, "n_heads": 1}, block=one_way))
