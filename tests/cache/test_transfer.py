import pytest
import torch
from safetensors.torch import load, save

from polyhead import Choice, ModelConfig, build
from polyhead.cache.block_manager import OutOfBlocksError
from polyhead.cache.factory import make_cache
from polyhead.cache.transfer import FORMAT, export_cache, import_cache
from polyhead.core.errors import UserError
from polyhead.kernels.pack_model import pack_model

SIZES = {"vocab_size": 20, "kind": "decoder", "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2}
HYBRID = {"layer_pattern": [{"attention": {"name": "linear"}}, {}]}
TOKENS = [[3, 4, 5, 6, 7], [8, 9]]


def make(seed=1, **changes):
    return build(ModelConfig(**{**SIZES, **changes}), seed=seed).eval()


@torch.no_grad()
def decode(model, tokens, pos, *caches):
    logits = []
    for cache in caches:
        cache.prepare_step(range(len(pos)), torch.tensor(pos))
        logits.append(model.decode(torch.tensor(tokens), torch.tensor(pos), cache))
    return logits


def fill(model, name="static", max_len=16, **options):
    cache = make_cache(Choice(name, **options), model.cache_shape, 2, max_len)
    decode(model, [TOKENS[0], [*TOKENS[1], 1, 1, 1]], [[0, 1, 2, 3, 4], [0, 1, -1, -1, -1]], cache)
    return cache


def empty(model, name="static", max_len=16, **options):
    return make_cache(Choice(name, **options), model.cache_shape, 0, max_len)


@pytest.mark.parametrize("name", ["static", "growing", "paged"])
def test_export_has_keys_and_values_of_each_row(name):
    model = make()
    tensors = load(export_cache(fill(model, name), [1, 0]))
    assert tensors["lengths"].tolist() == [2, 5]
    for row, tokens in zip((1, 0), TOKENS, strict=True):
        single = make_cache(Choice("growing"), model.cache_shape, 1, 16)
        decode(model, [tokens], [list(range(len(tokens)))], single)
        for i, layer in enumerate(single.layers):
            for side in "kv":
                x = tensors[f"layers.{i}.{side}"][row]
                torch.testing.assert_close(x[:, : len(tokens)], getattr(layer, side)[0])
                assert not x[:, len(tokens) :].any()


def test_transfers_of_pages_and_projections():
    model = make()
    cache = fill(model, "paged", block_size=4)
    cache.release(0)
    decode(model, [[3], [4]], [[0], [2]], cache)
    tensors = load(export_cache(cache, [0, 1]))
    assert tensors["layers.0.k"].shape[2] == 3 and not tensors["layers.0.k"][0, :, 1:].any()
    model = make()
    source, target = fill(model, "paged", block_size=2), empty(model, "paged", block_size=8)
    assert import_cache(target, export_cache(source, [1])) == range(1)
    assert import_cache(target, export_cache(source, [0])) == range(1, 2)
    source.select([1, 0])
    actual, expected = decode(model, [[3], [4]], [[2], [5]], target, source)
    torch.testing.assert_close(actual, expected)
    model = make()
    cache = empty(model, "paged", block_size=2, max_blocks=3)
    with pytest.raises(OutOfBlocksError):
        import_cache(cache, export_cache(fill(model, "paged"), [0, 1]))
    import_cache(cache, export_cache(fill(model, "paged"), [0]))
    cache.prepare_step([0], torch.tensor([[5]]))
    model = make()
    data, cache = export_cache(fill(model, "low_rank", rank=2), [0, 1]), empty(model, "low_rank", rank=2)
    import_cache(cache, data)
    import_cache(cache, data)
    with pytest.raises(UserError, match="projected to other directions"):
        import_cache(fill(make(2), "low_rank", rank=2), data)
    with pytest.raises(UserError, match=r"'layers.0.basis_k' is .* of shape \(2, 4, 2\), expected"):
        import_cache(empty(model, "low_rank", rank=1), data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "growing"}, "are those of cache 'static', but this cache is 'growing'"),
        ({"max_len": 4}, "position 4 does not fit into a cache of 4 positions"),
        ({"n_layers": 1}, "'layers.1.k' is not among"),
        ({"n_layers": 3}, "'layers.2.k' is missing"),
        ({"n_kv_heads": 4}, r"'layers.0.k' is torch.float32 of shape \(2, 2, 17, 4\), .* \(2, 4, 17, 4\)"),
    ],
    ids=str,
)
def test_rows_of_another_cache_or_model_are_refused(options, message):
    data, options = export_cache(fill(make()), [0, 1]), dict(options)
    choice = {name: options.pop(name) for name in ("name", "max_len") if name in options}
    cache = empty(make(**options), **choice)
    with pytest.raises(UserError, match=message):
        import_cache(cache, data)
    assert cache.memory_usage().used_bytes == 0


@pytest.mark.parametrize("name", ["static", "paged"])
def test_invalid_files_are_refused(name):
    cache, metadata = empty(make(), name), {"format": FORMAT, "cache": name}
    for data, message in (
        (b"", "this is no exported cache: "),
        (b"\xff" * 99, "this is no exported cache: "),
        (save({"lengths": torch.tensor([1])}), f"its format is None, expected '{FORMAT}'"),
        (save({}, metadata), "expected integers 'lengths'"),
        (save({"lengths": torch.tensor([0.5])}, metadata), "expected integers 'lengths'"),
        (save({"lengths": torch.tensor([-1])}, metadata), "an imported row has -1 tokens"),
        (save({"lengths": torch.tensor([1])}, metadata), "is missing"),
    ):
        with pytest.raises(UserError, match=message):
            import_cache(cache, data)
    with pytest.raises(UserError, match=r"'layers.0.k' is torch.float32 .*, expected torch.bfloat16"):
        import_cache(empty(make().bfloat16(), name), export_cache(fill(make(), name), [0, 1]))


@pytest.mark.parametrize("name", ["static", "growing", "paged", "quantized", "h2o", "window", "subgen"])
def test_empty_rows_can_be_transferred(name):
    cache, other = fill(make(), name), empty(make(), name)
    import_cache(other, export_cache(cache, []))
    cache.release(0)
    import_cache(other, export_cache(cache, [0]))
    other.prepare_step([0], torch.tensor([[0]]))


def test_composite_import_takes_all_rows_or_none():
    cache, wider, other = fill(make(**HYBRID)), empty(make(**HYBRID, n_kv_heads=4)), empty(make(**HYBRID))
    tensors = cache.export_rows([0, 1])
    for invalid, message in (
        ({k: x for k, x in tensors.items() if k != "caches.1.lengths"}, "expected integers 'lengths'"),
        (tensors | {"caches.2.k": tensors["caches.0.lengths"]}, "'caches.2.k', which is of none"),
        (tensors | {"lengths": tensors["caches.0.lengths"]}, "'lengths', which is of none"),
    ):
        with pytest.raises(UserError, match=message):
            other.import_rows(invalid)
        assert [part.num_rows for part in (other, *other.caches)] == [0, 0, 0]
    with pytest.raises(UserError, match="another model or other options"):
        wider.import_rows(tensors)
    assert import_cache(other, export_cache(cache, [0, 1])) == range(2)


@pytest.mark.parametrize("name", ["static", "paged"])
def test_imported_rows_of_packed_models_continue(name):
    model = pack_model(make())
    source, target = fill(model, name), empty(model, name)
    import_cache(target, export_cache(source, [0, 1]))
    assert target.memory_usage().peak_bytes >= target.memory_usage().reserved_bytes > 0
    for t in range(3):
        assert torch.equal(*decode(model, [[3 + t], [4]], [[5 + t], [2 + t]], source, target))
