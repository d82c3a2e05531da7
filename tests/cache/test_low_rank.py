import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cache.cache_helpers import SHAPE as WIDTHS_3_5

from polyhead import Choice, ModelConfig, build
from polyhead.cache.factory import make_cache
from polyhead.cache.low_rank import fit_low_rank, load_projection
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.kv import KV

SHAPE = WIDTHS_3_5._replace(head_dim=6, v_dim=4)
LINEAR_FIRST = [{"attention": "linear"}, {}]


def build_model(kind="decoder", **changes):
    sizes = {"d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "d_ff": 20, "max_len": 32}
    config = {"vocab_size": 19, "kind": kind, "position": "rope", "dropout": 0.0} | sizes | changes
    return build(ModelConfig(**config), seed=1).eval()


def project(x, rank):
    """(n, D) projected to its best subspace by singular vectors: a float64 array."""
    directions = np.linalg.svd(x.double().numpy(), full_matrices=False)[2][:rank]
    return x.double().numpy() @ directions.T @ directions


def test_first_step_fits_a_subspace_per_head():
    torch.manual_seed(0)
    cache = CACHE.build(Choice("low_rank", rank=3), SHAPE, 2, 20)
    pos = torch.tensor([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1]])
    cache.prepare_step([0, 1], pos)
    is_real = pos >= 0
    padding = ~is_real[:, None, :, None]
    for layer in cache.layers:
        k, v = torch.randn(2, 2, 5, 6), torch.randn(2, 2, 5, 4)
        kv = layer.update(KV(k.masked_fill(padding, torch.nan), v.masked_fill(padding, torch.nan)))
        assert kv.k.isfinite().all()
        for x, output in ((k, kv.k), (v, kv.v)):
            for head in range(2):
                expected = torch.from_numpy(project(x[:, head][is_real], 3)).float()
                torch.testing.assert_close(output[:, head, :5][is_real], expected, rtol=1e-4, atol=1e-5)
    cache.prepare_step([0, 1], torch.tensor([[5], [2]]))
    for layer in cache.layers:
        k = torch.randn(2, 2, 1, 6)
        kv = layer.update(KV(k, torch.randn(2, 2, 1, 4)))
        expected = k @ layer.basis.k @ layer.basis.k.mT
        torch.testing.assert_close(kv.k[0, :, 5], expected[0, :, 0])
        torch.testing.assert_close(kv.k[1, :, 2], expected[1, :, 0])


@pytest.mark.parametrize("pattern", [[], LINEAR_FIRST], ids=["softmax", "hybrid"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_fit_finds_principal_directions(kind, pattern, tmp_path):
    model, kv_layers = build_model(kind, layer_pattern=pattern, n_layers=4 if pattern else 2), (0, 1)
    if pattern:
        kv_layers = (1, 3)
    torch.manual_seed(2)
    tokens, pos = torch.randint(3, 19, (11, 7)), torch.arange(7).expand(11, -1).clone()
    pos[3, 4:] = -1
    source = (torch.randint(3, 19, (11, 5)), None) if kind != "decoder" else None
    path = tmp_path / "bases.safetensors"
    projections = fit_low_rank(model, tokens, 3, path, pos=pos, source=source)
    cache = make_cache(Choice("static"), model.cache_shape, 11, 7)
    with torch.no_grad():
        cache.prepare_step(range(11), pos)
        model.decode(tokens, pos, cache, model.encode(*source) if source else None)
    for i, bases in zip(kv_layers, projections, strict=True):
        for x, basis in ((cache.layers[i].k, bases.k), (cache.layers[i].v, bases.v)):
            assert basis.shape == (2, 4, 3)
            for head in range(2):
                vectors = x[:, head, :7][pos >= 0]
                actual = (vectors @ basis[head] @ basis[head].T).double().numpy()
                np.testing.assert_allclose(actual, project(vectors, 3), atol=1e-4)
    small = make_cache(Choice("low_rank", rank=3, projection=str(path)), model.cache_shape, 1, 7)
    for i, bases in zip(kv_layers, projections, strict=True):
        assert torch.equal(small.layers[i].basis.k, bases.k)
    loaded_projections = load_projection(path, model.cache_shape.select_layers(kv_layers), (2, 3))
    for a, b in zip(loaded_projections, projections, strict=True):
        assert torch.equal(a.k, b.k[..., :2]) and torch.equal(a.v, b.v)


def test_projections_of_other_layers_and_small_steps(tmp_path):
    path = tmp_path / "bases.safetensors"
    one, other = (build_model(layer_pattern=p, n_layers=4) for p in (LINEAR_FIRST, LINEAR_FIRST[::-1]))
    fit_low_rank(one, torch.randint(3, 19, (4, 9)), 3, path)
    with pytest.raises(UserError, match=r"has nothing for layers\.0\.k, expected .*: fit it on this model"):
        make_cache(Choice("low_rank", rank=3, projection=str(path)), other.cache_shape, 1, 7)
    assert other.cache_shape.select_layers([2, 3]).select_layers([1]).layer_ids == (3,)
    cache = CACHE.build(Choice("low_rank", rank=2, chunk=1), SHAPE, 1, 20)
    cache.prepare_step([0], torch.arange(6)[None])
    for layer in cache.layers:
        layer.update(KV(torch.randn(1, 2, 6, 6), torch.randn(1, 2, 6, 4)))
    slot, bases = 8 + 2 * 2 * (2 + 2) * 4, 2 * 2 * (6 + 4) * 2 * 4
    stored_bytes = sum(x.untyped_storage().nbytes() for layer in cache.layers for x in layer.basis)
    assert stored_bytes == bases, "dropped directions take no memory"
    assert cache.memory_usage()[:2] == (7 * slot + bases, 6 * slot + bases)
    cache = CACHE.build(Choice("low_rank", rank=4), SHAPE, 3, 20)
    cache.prepare_step([0, 1, 2], torch.zeros(3, 1, dtype=torch.int64))
    message = "fits 4 directions in the first step, which has only 3 tokens: set projection"
    with pytest.raises(UserError, match=message):
        cache.layers[0].update(KV(torch.zeros(3, 2, 1, 6), torch.zeros(3, 2, 1, 4)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers.1.v": (2, 4, 1)}, r"shape \(2, 4, 1\) for layers.1.v, expected \(2, 4, 2\) or more"),
        ({"layers.0.k": (1, 6, 3)}, r"has shape \(1, 6, 3\) for layers.0.k"),
        ({"layers.2.k": (2, 6, 3)}, r"belongs to another model: it also has layers\.2\.k"),
        ({"layers.1.v": torch.full((2, 4, 3), torch.nan)}, r"layers\.1\.v has NaN or an infinite value"),
        ({"layers.1.k": None}, r"has nothing for layers\.1\.k"),
        (None, r"mine\.safetensors' cannot be read"),
    ],
)
def test_invalid_projections_are_refused(tmp_path, changes, message):
    path = str(tmp_path / "mine.safetensors")
    shapes = {f"layers.{i}.{x}": (2, d, 3) for i in range(2) for x, d in (("k", 6), ("v", 4))}
    if changes:
        shapes |= changes
        tensors = {
            name: x if torch.is_tensor(x) else torch.randn(x) for name, x in shapes.items() if x is not None
        }
        save_file(tensors, path)
    with pytest.raises(UserError, match=message):
        CACHE.build(Choice("low_rank", rank=2, projection=path), SHAPE, 1, 9)
