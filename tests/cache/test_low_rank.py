"""The low-rank cache against singular vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from polyhead.cache.factory import make_cache
from polyhead.cache.low_rank import fit_low_rank, load_projection
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.models import build
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV

SHAPE = CacheShape(2, 2, 6, 4, torch.float32, torch.device("cpu"))
SIZES = {
    "d_model": 16,
    "n_heads": 4,
    "n_kv_heads": 2,
    "n_layers": 2,
    "d_ff": 20,
    "max_len": 32,
    "dropout": 0.0,
}


def nearest(x, rank):
    """(n, D) brought to the best subspace of so many directions, by singular vectors: a float64 array."""
    directions = np.linalg.svd(x.double().numpy(), full_matrices=False)[2][:rank]
    return x.double().numpy() @ directions.T @ directions


def test_without_a_file_the_first_step_is_brought_to_its_own_best_subspace_head_by_head():
    torch.manual_seed(0)
    cache = CACHE.build(Choice("low_rank", rank=3), SHAPE, 2, 20)
    pos = torch.tensor([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1]])
    cache.prepare_step([0, 1], pos)
    real = pos >= 0
    for layer in cache.layers:
        k, v = torch.randn(2, 2, 5, 6), torch.randn(2, 2, 5, 4)
        poison = ~real[:, None, :, None]
        kv = layer.update(KV(k.masked_fill(poison, torch.nan), v.masked_fill(poison, torch.nan)))
        assert kv.k.isfinite().all()
        for x, given in ((k, kv.k), (v, kv.v)):
            for head in range(2):
                wanted = torch.from_numpy(nearest(x[:, head][real], 3)).float()
                torch.testing.assert_close(given[:, head, :5][real], wanted, rtol=1e-4, atol=1e-5)
    cache.prepare_step([0, 1], torch.tensor([[5], [2]]))
    for layer in cache.layers:
        k = torch.randn(2, 2, 1, 6)
        kv = layer.update(KV(k, torch.randn(2, 2, 1, 4)))
        wanted = k @ layer.basis.k @ layer.basis.k.mT
        torch.testing.assert_close(kv.k[0, :, 5], wanted[0, :, 0])
        torch.testing.assert_close(kv.k[1, :, 2], wanted[1, :, 0])


@pytest.mark.parametrize("turns", [[], [{"attention": "linear"}, {}]], ids=["alike", "hybrid"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_a_file_holds_the_principal_directions_of_a_text(kind, turns, tmp_path):
    sizes = SIZES | {"layer_pattern": turns, "n_layers": 4 if turns else 2}
    model = build(ModelConfig(vocab_size=19, kind=kind, position="rope", **sizes), seed=1).eval()
    torch.manual_seed(2)
    tokens, pos = torch.randint(3, 19, (11, 7)), torch.arange(7).expand(11, -1).clone()
    pos[3, 4:] = -1
    source = (torch.randint(3, 19, (11, 5)), None) if kind != "decoder" else None
    path = tmp_path / "bases.safetensors"
    found = fit_low_rank(model, tokens, 3, path, pos=pos, source=source)
    cache = make_cache(Choice("static"), model.cache_shape, 11, 7)
    with torch.no_grad():
        cache.prepare_step(range(11), pos)
        model.decode(tokens, pos, cache, model.encode(*source) if source else None)
    keyed = [cache.layers[i] for i in ((1, 3) if turns else (0, 1))]
    for layer, bases in zip(keyed, found, strict=True):
        for x, P in ((layer.k, bases.k), (layer.v, bases.v)):
            assert P.shape == (2, 4, 3)
            for head in range(2):
                seen = x[:, head, :7][pos >= 0]
                brought = (seen @ P[head] @ P[head].T).double().numpy()
                np.testing.assert_allclose(brought, nearest(seen, 3), atol=1e-4)
    small = make_cache(Choice("low_rank", rank=3, projection=str(path)), model.cache_shape, 1, 7)
    held = [small.layers[i].basis for i in ((1, 3) if turns else (0, 1))]
    assert all(torch.equal(a.k, b.k) for a, b in zip(held, found, strict=True))
    again = load_projection(path, model.cache_shape.select_layers((1, 3) if turns else (0, 1)), (2, 3))
    assert all(
        torch.equal(a.k, b.k[..., :2]) and torch.equal(a.v, b.v) for a, b in zip(again, found, strict=True)
    )


def test_a_file_of_another_arrangement_of_layers_is_refused(tmp_path):
    """As many layers with keys and values, and not the same ones."""
    turns, path = [{"attention": "linear"}, {}], tmp_path / "bases.safetensors"
    sizes = SIZES | {"n_layers": 4, "vocab_size": 19, "kind": "decoder"}
    one, other = (build(ModelConfig(**sizes, layer_pattern=each), seed=1) for each in (turns, turns[::-1]))
    fit_low_rank(one, torch.randint(3, 19, (4, 9)), 3, path)
    with pytest.raises(UserError, match=r"has nothing for layers\.0\.k, expected .*: fit it on this model"):
        make_cache(Choice("low_rank", rank=3, projection=str(path)), other.cache_shape, 1, 7)
    assert other.cache_shape.select_layers([2, 3]).select_layers([1]).layer_ids == (3,)


def test_a_file_of_full_rank_and_none_at_the_width_of_a_head_lose_nothing(tmp_path):
    model = build(ModelConfig(vocab_size=19, kind="decoder", position="rope", **SIZES), seed=1).eval()
    tokens = torch.randint(3, 19, (4, 9))
    fit_low_rank(model, tokens, 4, tmp_path / "all.safetensors")
    pos = torch.arange(9).expand(4, -1)
    with torch.no_grad():
        for options in (
            {"rank": 4, "projection": str(tmp_path / "all.safetensors")},
            {"rank": 4},
            {"rank": 99},
        ):
            cache = make_cache(Choice("low_rank", **options), model.cache_shape, 4, 9)
            cache.prepare_step(range(4), pos)
            torch.testing.assert_close(model.decode(tokens, pos, cache), model(tokens), rtol=1e-4, atol=1e-5)


def test_memory_is_that_of_the_directions_and_of_what_is_kept():
    cache = CACHE.build(Choice("low_rank", rank=2, chunk=1), SHAPE, 1, 20)
    cache.prepare_step([0], torch.arange(6)[None])
    for layer in cache.layers:
        layer.update(KV(torch.randn(1, 2, 6, 6), torch.randn(1, 2, 6, 4)))
    slot, bases = 8 + 2 * 2 * (2 + 2) * 4, 2 * 2 * (6 + 4) * 2 * 4
    kept = [x.untyped_storage().nbytes() for layer in cache.layers for x in layer.basis]
    assert cache.memory_usage()[:2] == (7 * slot + sum(kept), 6 * slot + sum(kept))
    assert sum(kept) == bases, "the other directions are not held on to"


def test_what_cannot_work_is_refused(tmp_path):
    cache = CACHE.build(Choice("low_rank", rank=4), SHAPE, 3, 20)
    cache.prepare_step([0, 1, 2], torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(
        UserError, match="fits 4 directions in the first step, which has only 3 tokens: set projection"
    ):
        cache.layers[0].update(KV(torch.zeros(3, 2, 1, 6), torch.zeros(3, 2, 1, 4)))
    with pytest.raises(UserError, match="rank is 0, expected at least 1"):
        CACHE.build(Choice("low_rank", rank=0), SHAPE, 1, 9)
    path = str(tmp_path / "mine.safetensors")
    with pytest.raises(UserError, match=r"mine\.safetensors' cannot be read"):
        CACHE.build(Choice("low_rank", rank=2, projection=path), SHAPE, 1, 9)
    good = {f"layers.{i}.{x}": torch.randn(2, d, 3) for i in range(2) for x, d in (("k", 6), ("v", 4))}
    for change, message in (
        (
            {"layers.1.v": torch.randn(2, 4, 1)},
            r"has shape \(2, 4, 1\) for layers.1.v, expected \(2, 4, 2\) or more",
        ),
        ({"layers.0.k": torch.randn(1, 6, 3)}, r"has shape \(1, 6, 3\) for layers.0.k"),
        ({"layers.2.k": torch.randn(2, 6, 3)}, r"belongs to another model: it also has layers\.2\.k"),
    ):
        save_file(good | change, path)
        with pytest.raises(UserError, match=message):
            CACHE.build(Choice("low_rank", rank=2, projection=path), SHAPE, 1, 9)
    save_file({name: x for name, x in good.items() if name != "layers.1.k"}, path)
    with pytest.raises(UserError, match=r"has nothing for layers\.1\.k"):
        CACHE.build(Choice("low_rank", rank=2, projection=path), SHAPE, 1, 9)
