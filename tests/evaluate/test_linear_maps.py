import pytest
import torch

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.introspect.attention_map import AttentionMap
from polyhead.introspect.compute_attention import compute_pair_attention, record_attention
from polyhead.models import build
from polyhead.viz.attention_page import write_attention_page


def make_model(attention="linear", **parts):
    sizes = {"vocab_size": 17, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "d_ff": 24}
    return build(ModelConfig(attention=attention, dropout=0.0, **sizes, **parts), seed=0).eval()


@pytest.mark.parametrize("position", ["sinusoidal", "rope"])
def test_linear_maps_equal_kernel_attention(position, tmp_path):
    """Only without rope: kernel attention rotates queries and keys, not their features."""
    model = make_model(position=position)
    torch.manual_seed(1)
    source, target = torch.randint(5, 17, (1, 6)), torch.randint(5, 17, (1, 4))
    maps = compute_pair_attention(model, source, target)
    shapes = {"encoder": (2, 4, 6, 6), "decoder": (2, 4, 4, 4), "cross": (2, 4, 4, 6)}
    assert {kind: tuple(each.weights.shape) for kind, each in maps.items()} == shapes
    assert (maps["decoder"].weights.triu(1) == 0).all()
    torch.testing.assert_close(maps["cross"].weights.sum(-1), torch.ones(2, 4, 4), rtol=0, atol=1e-5)
    for kind, each in maps.items():
        rows, columns = (list("abcdef"[: each.weights.size(i)]) for i in (2, 3))
        attention_map = AttentionMap(columns, rows, each.weights, kind)
        page = write_attention_page(tmp_path / f"{kind}.html", attention_map)
        assert "NaN" not in page.read_text()
    if position != "rope":
        kernel = make_model(attention={"name": "kernel", "sim": "elu"})
        kernel.load_state_dict(model.state_dict())
        for kind, each in compute_pair_attention(kernel, source, target).items():
            torch.testing.assert_close(maps[kind].weights, each.weights, rtol=0, atol=1e-5)


@torch.no_grad()
def test_stepwise_linear_attention_records_only_cross_maps():
    model, source, target = make_model(), torch.randint(5, 17, (2, 6)), torch.randint(5, 17, (2, 5))
    with record_attention(model) as maps:
        model(source, target)
    full_maps = {name: passes[0] for name, passes in maps.items()}
    with record_attention(model) as maps:
        memory = [kv.contiguous_for_decoding() for kv in model.encode(source)]
        cache = make_cache(None, model.cache_shape, 2, 5)
        for t in range(5):
            pos = torch.full((2, 1), t)
            cache.prepare_step(range(2), pos)
            model.decode(target[:, t : t + 1], pos, cache, memory)
    for i in range(2):
        assert maps[f"decoder.layers.{i}.attn"] == []
        name = f"decoder.layers.{i}.cross"
        torch.testing.assert_close(torch.cat(maps[name], 2), full_maps[name], rtol=0, atol=1e-6)
