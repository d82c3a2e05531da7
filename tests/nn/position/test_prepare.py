"""What depends on positions alone is computed once a forward pass, for all layers of a stack, and kept for
no other.
"""

import copy

import pytest
import torch

from polyhead.cache.factory import make_cache
from polyhead.config.model import AttentionShape, ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import POSITION
from polyhead.models import build
from polyhead.nn.kv import KV
from polyhead.nn.position import alibi, disentangled, rope, shaw, t5

MAKERS = {
    "rope": (rope.Rope, "prepare"),
    "alibi": (alibi.Alibi, "compute_pairs"),
    "t5": (t5.T5Bias, "compute_pairs"),
    "shaw": (shaw.Shaw, "compute_pairs"),
    "disentangled": (disentangled.DisentangledPosition, "compute_pairs"),
}
SIZES = {
    "vocab_size": 20,
    "d_model": 16,
    "n_heads": 4,
    "n_kv_heads": 2,
    "n_layers": 3,
    "d_ff": 16,
    "dropout": 0.0,
}
SHAPE = AttentionShape.from_sizes(16, 4, 2)
RAGGED = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]])


def counted(name, monkeypatch):
    """The calls of the function that computes the tables of a scheme."""
    part, method = MAKERS[name]
    calls, original = [], getattr(part, method)
    monkeypatch.setattr(part, method, lambda *given: calls.append(given) or original(*given))
    return calls


def test_every_scheme_of_heads_and_scores_is_tested_here():
    acting = {name for name in POSITION.names() if POSITION.get(name).kind in ("heads", "scores")}
    assert acting == set(MAKERS)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_model_computes_once_a_forward_pass_for_each_stack(name, padded, monkeypatch):
    calls, model = counted(name, monkeypatch), build(ModelConfig(**SIZES, position=name), seed=1)
    for n in (1, 2):
        source, target = torch.randint(0, 20, (2, 4)), torch.randint(0, 20, (2, 6))
        model(source, target, RAGGED if padded else None).sum().backward()
        assert len(calls) == 2 * n


@pytest.mark.parametrize("cache", ["static", "growing", "paged", "h2o"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_step_computes_once_where_all_layers_have_the_same_slots(name, cache, monkeypatch):
    model = build(ModelConfig(**SIZES, kind="decoder", position=name), seed=1).eval()
    stored, calls = make_cache(Choice(cache), model.cache_shape, 2, 8), counted(name, monkeypatch)
    own_slots = name != "rope" and cache == "h2o"  # every layer evicts by itself
    with torch.inference_mode():
        for t in range(3):
            pos = torch.full((2, 1), t)
            stored.prepare_step(range(2), pos)
            model.decode(torch.randint(0, 20, (2, 1)), pos, stored)
            assert len(calls) == (t + 1) * (3 if own_slots else 1)


@pytest.mark.parametrize("pos", [None, RAGGED], ids=["full", "padded"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_prepared_scheme_gives_what_the_scheme_gives(name, pos):
    torch.manual_seed(0)
    scheme = POSITION.get(name)(SHAPE)
    prepared = scheme.prepare(pos, 4, torch.device("cpu"))
    assert [*prepared.parameters()] == [*scheme.parameters()]
    q, k, to_q, to_k = (torch.randn(size) for size in ((2, 4, 4, 4), (2, 2, 4, 4), (4, 16, 4), (2, 16, 4)))
    other = torch.tensor([[[3, 2, 1, 0]], [[5, 9, 0, -1]]])
    for x in (q, k, q[:, :1]):
        assert torch.equal(prepared.rotate(x, pos), scheme.rotate(x, pos))
    for slots in (k, k[:, :, :3]):
        for slot_pos in (None if pos is None else pos[:, None], other, other.clone(), other):
            kv = KV(slots, slots, slot_pos if slot_pos is None else slot_pos[..., : slots.size(2)])
            found, wanted = (
                x.scores(q, kv, pos, 0.7, lambda x: (x @ to_q, x @ to_k)) for x in (prepared, scheme)
            )
            assert (found is None) == (name == "rope") and (found is None or torch.equal(found, wanted))
            weights = torch.rand(2, 4, 4, slots.size(2))
            if scheme.adds_values:
                assert torch.equal(prepared.values(weights, kv, pos), scheme.values(weights, kv, pos))


def test_a_table_follows_positions_and_dtype():
    """Same positions in another tensor over the same memory are the same; a copy is computed anew."""
    scheme, calls = alibi.Alibi(SHAPE), []
    compute, pos = scheme.compute_pairs, torch.tensor([[0, 1, 2]])
    scheme.compute_pairs = lambda *given: calls.append(given) or compute(*given)
    prepared, q, k = scheme.prepare(pos, 3, pos.device), torch.randn(1, 4, 3, 4), torch.randn(1, 2, 3, 4)
    for _ in range(2):
        prepared.bias(q, KV(k, k, pos[:, None]), pos)
    assert len(calls) == 1
    prepared.bias(q, KV(k, k, pos[:, None].clone()), pos)
    prepared.bias(q, KV(k, k, None), pos)
    assert prepared.bias(q.bfloat16(), KV(k, k, None), pos).dtype == torch.bfloat16
    prepared.bias(q, KV(k[:, :, :2], k[:, :, :2], None), pos)
    assert len(calls) == 5


def test_layers_with_angles_of_their_own_get_their_own():
    """Layers of one pattern entry share tables, and the entries do not."""
    pattern = [{}, {"position": {"name": "rope", "theta": 50.0}}, {"position": "alibi"}]
    config = ModelConfig(**SIZES | {"n_layers": 6}, kind="decoder", position="rope", layer_pattern=pattern)
    model, tokens = build(config, seed=1).eval(), torch.randint(0, 20, (2, 5))
    seen = []
    for layer in model.stack.layers:
        layer.register_forward_pre_hook(lambda part, given: seen.extend(given[4:]))
    found, x = model(tokens), model.embedding(tokens)
    assert [seen.index(position) for position in seen] == [0, 1, 2, 0, 1, 2]
    for layer in model.stack.layers:  # without tables, each attention computes its own
        x = layer(x)
    assert torch.equal(found, model.head(x if model.stack.final_norm is None else model.stack.final_norm(x)))


@pytest.mark.parametrize("name", MAKERS)
def test_outputs_do_not_depend_on_what_came_before(name):
    """Training, decoding in inference mode, bf16, copies and casts take turns on one model."""
    torch.manual_seed(0)
    made, fresh = (build(ModelConfig(**SIZES, position=name), seed=1) for _ in range(2))
    source, target = torch.randint(0, 20, (2, 4)), torch.randint(0, 20, (2, 6))
    ragged = RAGGED.clone()

    def losses(of, pos):
        loss = of(source, target, pos).square().mean()
        (gradient,) = torch.autograd.grad(loss, [of.decoder_embedding.token.weight])
        return loss.detach(), gradient

    for pos in (ragged, None, ragged):
        with torch.inference_mode():
            made(source, target, pos)
        with torch.no_grad():
            made(source, target, pos)
        with torch.autocast("cpu", torch.bfloat16):
            losses(made, pos)
        torch.testing.assert_close(
            losses(copy.deepcopy(made), pos), losses(copy.deepcopy(fresh), pos), rtol=0, atol=0
        )
        torch.testing.assert_close(losses(made, pos), losses(copy.deepcopy(fresh), pos), rtol=0, atol=0)
        losses(made.double(), pos)
        made.float()
    ragged[1] = torch.tensor([5, -1, 0, 2])  # written into
    torch.testing.assert_close(losses(made, ragged), losses(copy.deepcopy(fresh), ragged), rtol=0, atol=0)
