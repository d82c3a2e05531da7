import copy

import pytest
import torch

from polyhead import Choice, build
from polyhead.cache.factory import make_cache
from polyhead.config.model import AttentionShape, ModelConfig
from polyhead.core.registry import POSITION
from polyhead.nn.kv import KV
from polyhead.nn.position import disentangled, rope
from polyhead.nn.position import relative as alibi
from polyhead.nn.position import relative as shaw
from polyhead.nn.position import relative as t5

PARTS = {"alibi": alibi.Alibi, "t5": t5.T5Bias, "shaw": shaw.Shaw}
PARTS["disentangled"] = disentangled.DisentangledPosition
METHODS = {"rope": (rope.Rope, "prepare")} | {name: (part, "compute_pairs") for name, part in PARTS.items()}
SIZES = {"vocab_size": 20, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 3, "d_ff": 16}
SIZES["dropout"] = 0.0
SHAPE = AttentionShape.from_sizes(16, 4, 2)
RAGGED_POS = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]])


def count_calls(name, monkeypatch):
    part, method = METHODS[name]
    calls, original = [], getattr(part, method)
    monkeypatch.setattr(part, method, lambda *inputs: calls.append(inputs) or original(*inputs))
    return calls


@pytest.mark.parametrize("pos", [None, RAGGED_POS], ids=["full", "padded"])
@pytest.mark.parametrize("name", METHODS)
def test_forward_pass_computes_once_per_stack(name, pos, monkeypatch):
    calls, model = count_calls(name, monkeypatch), build(ModelConfig(**SIZES, position=name), seed=1)
    for n in (1, 2):
        source, target = torch.randint(0, 20, (2, 4)), torch.randint(0, 20, (2, 6))
        model(source, target, pos).sum().backward()
        assert len(calls) == 2 * n


@pytest.mark.parametrize("cache", ["static", "growing", "paged", "h2o"])
@pytest.mark.parametrize("name", METHODS)
@torch.inference_mode()
def test_decoding_step_computes_once_for_equal_slots(name, cache, monkeypatch):
    model = build(ModelConfig(**SIZES, kind="decoder", position=name), seed=1).eval()
    cached, calls = make_cache(Choice(cache), model.cache_shape, 2, 8), count_calls(name, monkeypatch)
    n_calls = 3 if name != "rope" and cache == "h2o" else 1  # every layer evicts by itself
    for t in range(3):
        pos = torch.full((2, 1), t)
        cached.prepare_step(range(2), pos)
        model.decode(torch.randint(0, 20, (2, 1)), pos, cached)
        assert len(calls) == (t + 1) * n_calls


@pytest.mark.parametrize("pos", [None, RAGGED_POS], ids=["full", "padded"])
@pytest.mark.parametrize("name", METHODS)
def test_prepared_scheme_equals_the_scheme(name, pos):
    scheme = POSITION.get(name)(SHAPE)
    prepared = scheme.prepare(pos, 4, torch.device("cpu"))
    assert [*prepared.parameters()] == [*scheme.parameters()]
    q, k, to_q, to_k = (torch.randn(size) for size in ((2, 4, 4, 4), (2, 2, 4, 4), (4, 16, 4), (2, 16, 4)))
    shuffled = torch.tensor([[[3, 2, 1, 0]], [[5, 9, 0, -1]]])
    for x in (q, k, q[:, :1]):
        assert torch.equal(prepared.rotate(x, pos), scheme.rotate(x, pos))
    for slots in (k, k[:, :, :3]):
        for k_pos in (None if pos is None else pos[:, None], shuffled, shuffled.clone(), shuffled):
            kv = KV(slots, slots, None if k_pos is None else k_pos[..., : slots.size(2)])
            actual, expected = (
                x.scores(q, kv, pos, 0.7, lambda x: (x @ to_q, x @ to_k)) for x in (prepared, scheme)
            )
            assert (actual is None) == (name == "rope") and (actual is None or torch.equal(actual, expected))
            weights = torch.rand(2, 4, 4, slots.size(2))
            if scheme.adds_values:
                assert torch.equal(prepared.values(weights, kv, pos), scheme.values(weights, kv, pos))


def test_tables_are_shared_by_equal_positions_and_layers():
    """The same memory in another tensor is the same; a copy is computed again."""
    scheme, calls = alibi.Alibi(SHAPE), []
    compute, pos = scheme.compute_pairs, torch.tensor([[0, 1, 2]])
    scheme.compute_pairs = lambda *inputs: calls.append(inputs) or compute(*inputs)
    prepared, q, k = scheme.prepare(pos, 3, pos.device), torch.randn(1, 4, 3, 4), torch.randn(1, 2, 3, 4)
    for _ in range(2):
        prepared.bias(q, KV(k, k, pos[:, None]), pos)
    assert len(calls) == 1
    prepared.bias(q, KV(k, k, pos[:, None].clone()), pos)
    prepared.bias(q, KV(k, k, None), pos)
    assert prepared.bias(q.bfloat16(), KV(k, k, None), pos).dtype == torch.bfloat16
    prepared.bias(q, KV(k[:, :, :2], k[:, :, :2], None), pos)
    assert len(calls) == 5
    pattern = [{}, {"position": {"name": "rope", "theta": 50.0}}, {"position": "alibi"}]
    config = ModelConfig(**SIZES | {"n_layers": 6}, kind="decoder", position="rope", layer_pattern=pattern)
    model, tokens = build(config, seed=1).eval(), torch.randint(0, 20, (2, 5))
    positions = []
    for layer in model.stack.layers:
        layer.register_forward_pre_hook(lambda part, inputs: positions.extend(inputs[4:]))
    output, x = model(tokens), model.embedding(tokens)
    assert [positions.index(position) for position in positions] == [0, 1, 2, 0, 1, 2]
    for layer in model.stack.layers:  # without tables, each attention computes its own
        x = layer(x)
    assert torch.equal(output, model.head(x if model.stack.final_norm is None else model.stack.final_norm(x)))


@pytest.mark.parametrize("name", METHODS)
def test_outputs_do_not_depend_on_previous_calls(name):
    model, fresh = (build(ModelConfig(**SIZES, position=name), seed=1) for _ in range(2))
    source, target = torch.randint(0, 20, (2, 4)), torch.randint(0, 20, (2, 6))
    ragged = RAGGED_POS.clone()

    def compute_loss(model, pos):
        loss = model(source, target, pos).square().mean()
        (gradient,) = torch.autograd.grad(loss, [model.decoder_embedding.token.weight])
        return loss.detach(), gradient

    def assert_fresh(model, pos):
        expected = compute_loss(copy.deepcopy(fresh), pos)
        torch.testing.assert_close(compute_loss(model, pos), expected, rtol=0, atol=0)

    for pos in (ragged, None, ragged):
        for context in (torch.inference_mode(), torch.no_grad()):
            with context:
                model(source, target, pos)
        with torch.autocast("cpu", torch.bfloat16):
            compute_loss(model, pos)
        assert_fresh(copy.deepcopy(model), pos)
        assert_fresh(model, pos)
        compute_loss(model.double(), pos)
        model.float()
    ragged[1] = torch.tensor([5, -1, 0, 2])  # changed in place
    assert_fresh(model, ragged)
