import pytest
import torch
from tests.nn.block.block_helpers import HOLES, SIZES, C, draw, make_block
from torch import nn

from polyhead import ModelConfig, build
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.nn.block.recurrent import LSTM

KINDS = ["rnn", "lstm", "gru"]


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


def reference(rnn, tokens, start):
    weights = dict(rnn.named_parameters())
    w, u, bw, bu = (weights.get(f"{n}_l0") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    state, outputs = start, []
    for x in tokens:
        if bw is None:  # a plain network: Y_i = tanh(X_i W + Y_{i-1} U), without biases
            state = (torch.tanh(x @ w.mT + state[0] @ u.mT),)
        elif len(start) == 2:
            state = lstm_cell(x, *state, w, u, bw + bu)
        else:
            state = (gru_cell(x, *state, w, u, bw, bu),)
        outputs.append(state[0])
    return torch.stack(outputs), state


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("units", [None, 10])
def test_encoder_reads_each_row_forward_and_backward(name, units):
    layer, x = make_block(name, units=units), draw(3, 7)
    assert layer.units == (units or C) // 2
    output, zeros = layer(x, HOLES), (torch.zeros(layer.units, dtype=torch.float64),) * layer.rnn.n_states
    for b, is_token in enumerate(HOLES >= 0):
        tokens = x[b][is_token]
        forward, _ = reference(layer.rnn, tokens, zeros)
        backward, _ = reference(layer.reverse, tokens.flip(0), zeros)
        h = torch.cat([forward, backward.flip(0)], 1)
        h = h if units is None else h @ layer.o_proj.weight.mT + layer.o_proj.bias
        torch.testing.assert_close(output[b][is_token], tokens + h, rtol=0, atol=1e-12)


def luong_attention(cross, h, source):
    """Luong et al. (2015), "general": sum over heads of O_k softmax(h W_k s) s, W_k = Q_k^T K_k / sqrt(D)."""
    output, D = torch.zeros(C, dtype=torch.float64), C // 2
    for k in range(2):
        head = slice(k * D, (k + 1) * D)
        q, key, v = (p.weight[head] for p in (cross.q_proj, cross.k_proj, cross.v_proj))
        weights = torch.stack([h @ q.mT @ key @ s / D**0.5 for s in source]).softmax(0)
        output = output + cross.o_proj.weight[:, head] @ (v @ source.mT @ weights)
    return output


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("attention", [True, False])
def test_decoder_starts_from_and_attends_to_the_source(name, attention):
    layer, source, x = make_block(name, cross=True, attention=attention), draw(3, 7), draw(3, 4)
    assert (layer.cross is not None) == attention
    pos = torch.tensor([[0, 1, 2, 3], [0, -1, 1, 2], [-1, 0, -1, -1]])
    output = layer(x, pos, memory=layer.project_kv(source, HOLES))
    for b, is_token in enumerate(pos >= 0):
        source_tokens, tokens = source[b][HOLES[b] >= 0], x[b][is_token]
        ends = torch.cat([source_tokens[0], source_tokens[-1]])
        start = layer.start_proj.weight @ ends + layer.start_proj.bias
        h, _ = reference(layer.rnn, tokens, (start.tanh(), start) if name == "lstm" else (start.tanh(),))
        expected = tokens + h
        if attention:
            expected = torch.stack([y + luong_attention(layer.cross, y, source_tokens) for y in expected])
        torch.testing.assert_close(output[b][is_token], expected, rtol=0, atol=1e-12)


BLOCKS = [{"block": {"name": name, "attention": a}} for name in KINDS for a in (True, False)]
BLOCKS += [{"block": "gated_conv", "decoder_block": name} for name in ("gated_conv", "transformer", "gru")]


@pytest.mark.parametrize("changes", BLOCKS, ids=str)
def test_beam_scores_equal_teacher_forcing(changes):
    """Sentences end at different steps, so that memory and states are reordered."""
    model = build(ModelConfig(**SIZES, **changes), seed=3).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.4 * torch.randn_like(p))
    source, options = torch.randint(5, 23, (3, 7)), {"bos_id": 1, "eos_id": 2, "max_new_tokens": [9, 3, 6]}
    hypotheses = beam_search(model, source, HOLES, beam_size=4, n_best=4, **options)
    assert {len(best) for best in hypotheses} == {4}
    for row, pos, best in zip(source, HOLES, hypotheses, strict=True):
        for hypothesis in best:
            target = torch.tensor([[1, *hypothesis.tokens, 2]])
            log_p = model(row[pos >= 0][None], target[:, :-1]).detach().log_softmax(-1)[0]
            scores = log_p.gather(1, target[0, 1:, None])[:, 0]
            # with the end of the sentence, or cut before it
            assert min(abs(hypothesis.log_prob - float(x.sum())) for x in (scores, scores[:-1])) < 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_initial_weights_are_orthogonal_with_a_forget_bias(name):
    model = build(ModelConfig(**SIZES | {"d_model": 32, "vocab_size": 30}, block=name), seed=0)
    layers = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
    assert len(layers) == 2 * 2 + 2
    for rnn in layers:
        H = rnn.hidden_size
        for u in rnn.weight_hh_l0.detach().split(H):
            torch.testing.assert_close(u @ u.mT, torch.eye(H), rtol=0, atol=1e-5)
        bound = (6 / (32 + H)) ** 0.5
        assert 0.98 * bound < rnn.weight_ih_l0.abs().max() <= bound and rnn.bias == (name != "rnn")
        if rnn.bias:
            gates = (rnn.bias_ih_l0 + rnn.bias_hh_l0).detach().split(H)
            expected = [0, 1, 0, 0] if name == "lstm" else [0, 0, 0]
            assert [gate.unique().tolist() for gate in gates] == [[value] for value in expected]


def test_lstm_trains_in_bf16_without_processor_support(monkeypatch):
    class NoBf16Support:
        def __getattr__(self, name):
            return (lambda: False) if name == "_is_mkldnn_bf16_supported" else getattr(ops, name)

    ops = torch.ops.mkldnn
    monkeypatch.setattr(torch.ops, "mkldnn", NoBf16Support())
    layer, x = LSTM(8, 8, batch_first=True), torch.randn(2, 5, 8)
    state = (torch.zeros(2, 8), torch.zeros(2, 8))
    expected, _ = layer(x, state)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x, state)
    assert torch.equal(output, expected)
    output.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
