"""A model that folds the past shows the maps it can, and the others are missing rather than wrong."""

import pytest
import torch

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.introspect.attention_map import AttentionMap
from polyhead.introspect.compute_attention import compute_pair_attention, record_attention
from polyhead.models import build
from polyhead.viz.attention_page import write_attention_page


def make_model(**design):
    config = ModelConfig(
        vocab_size=17, d_model=16, n_heads=4, n_kv_heads=2, n_layers=2, d_ff=24, dropout=0.0, **design
    )
    return build(config, seed=0).eval()


@pytest.mark.parametrize("position", ["sinusoidal", "rope"])
def test_linear_maps_equal_kernel_attention(position):
    model = make_model(attention="linear", position=position)
    torch.manual_seed(1)
    source, target = torch.randint(5, 17, (1, 6)), torch.randint(5, 17, (1, 4))
    maps_of = compute_pair_attention(model, source, target)
    assert {kind: tuple(maps.weights.shape) for kind, maps in maps_of.items()} == {
        "encoder": (2, 4, 6, 6),
        "decoder": (2, 4, 4, 4),
        "cross": (2, 4, 4, 6),
    }
    assert (maps_of["decoder"].weights.triu(1) == 0).all()
    torch.testing.assert_close(maps_of["cross"].weights.sum(-1), torch.ones(2, 4, 4), rtol=0, atol=1e-5)
    if position == "rope":
        return  # there the kernel written out turns queries and keys, not their features
    other = make_model(attention={"name": "kernel", "sim": "elu"})
    other.load_state_dict(model.state_dict())
    for kind, maps in compute_pair_attention(other, source, target).items():
        torch.testing.assert_close(maps_of[kind].weights, maps.weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", ["sinusoidal", "rope"])
def test_the_page_of_a_linear_model_is_written(tmp_path, position):
    source, target = torch.arange(5, 11)[None], torch.arange(5, 9)[None]
    for kind, layers in compute_pair_attention(
        make_model(attention="linear", position=position), source, target
    ).items():
        weights = layers.weights
        rows, columns = list("abcdef"[: weights.size(2)]), list("abcdef"[: weights.size(3)])
        page = write_attention_page(tmp_path / f"{kind}.html", AttentionMap(columns, rows, weights, kind))
        assert "NaN" not in page.read_text()


@torch.no_grad()
def test_stepwise_linear_attention_records_only_cross_maps():
    model, source = make_model(attention="linear"), torch.randint(5, 17, (2, 6))
    target = torch.randint(5, 17, (2, 5))
    with record_attention(model) as recorded_maps:
        model(source, target)
    full_maps = {name: passes[0] for name, passes in recorded_maps.items()}
    with record_attention(model) as recorded_maps:
        memory = [memory_kv.contiguous_for_decoding() for memory_kv in model.encode(source)]
        cache = make_cache(None, model.cache_shape, 2, 5)
        for t in range(5):
            pos = torch.full((2, 1), t)
            cache.prepare_step(range(2), pos)
            model.decode(target[:, t : t + 1], pos, cache, memory)
    for i in range(2):
        assert recorded_maps[f"decoder.layers.{i}.attn"] == []
        torch.testing.assert_close(
            torch.cat(recorded_maps[f"decoder.layers.{i}.cross"], 2),
            full_maps[f"decoder.layers.{i}.cross"],
            rtol=0,
            atol=1e-6,
        )
