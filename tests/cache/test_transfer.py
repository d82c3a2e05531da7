"""Tests of cache/transfer.py; tests/laws/test_cache_transfer.py has what holds for every cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from polyhead import Choice, ModelConfig, build
from polyhead.cache.block_manager import OutOfBlocksError
from polyhead.cache.factory import make_cache
from polyhead.cache.transfer import FORMAT, export_cache, import_cache
from polyhead.core.errors import UserError
from polyhead.kernels.pack_model import pack_model
from polyhead.models import CausalLM
from polyhead.nn.cache import Cache

SIZES = {"vocab_size": 20, "kind": "decoder", "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2}
TOKENS = [[3, 4, 5, 6, 7], [8, 9]]


def make(seed: int = 1, **changes: Any) -> CausalLM:
    model = build(ModelConfig(**{**SIZES, **changes}), seed=seed).eval()
    assert isinstance(model, CausalLM)
    return model


def fill(model: CausalLM, name: str = "static", max_len: int = 16, **options: Any) -> Cache:
    """A cache of two rows of five and two tokens."""
    cache = make_cache(Choice(name, **options), model.cache_shape, 2, max_len)
    pos = torch.tensor([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1]])
    cache.prepare_step(range(2), pos)
    with torch.no_grad():
        model.decode(torch.tensor([TOKENS[0], [*TOKENS[1], 1, 1, 1]]), pos, cache)
    return cache


def empty(model: CausalLM, name: str = "static", max_len: int = 16, **options: Any) -> Cache:
    return make_cache(Choice(name, **options), model.cache_shape, 0, max_len)


@pytest.mark.parametrize("name", ["static", "growing", "paged"])
def test_a_file_has_the_keys_of_each_row_at_their_places(name: str) -> None:
    model = make()
    tensors = load(export_cache(fill(model, name), [1, 0]))
    assert tensors["lengths"].tolist() == [2, 5]
    with torch.no_grad():
        for row, tokens in zip((1, 0), TOKENS, strict=True):
            alone = make_cache(Choice("growing"), model.cache_shape, 1, 16)
            alone.prepare_step([0], torch.arange(len(tokens))[None])
            model.decode(torch.tensor([tokens]), torch.arange(len(tokens))[None], alone)
            for i, layer in enumerate(alone.layers):
                for side in "kv":
                    x = tensors[f"layers.{i}.{side}"][row]
                    torch.testing.assert_close(x[:, : len(tokens)], getattr(layer, side)[0])
                    assert not x[:, len(tokens) :].any()


def test_freed_pages_give_away_nothing_of_the_rows_that_had_them() -> None:
    model = make()
    cache = fill(model, "paged", block_size=4)
    cache.release(0)
    cache.prepare_step([0, 1], torch.tensor([[0], [2]]))
    with torch.no_grad():
        model.decode(torch.tensor([[3], [4]]), torch.tensor([[0], [2]]), cache)
    tensors = load(export_cache(cache, [0, 1]))
    assert tensors["layers.0.k"].shape[2] == 3
    assert not tensors["layers.0.k"][0, :, 1:].any()


def test_pages_may_have_another_size_and_a_row_another_place() -> None:
    model = make()
    stayed, moved = fill(model, "paged", block_size=2), empty(model, "paged", block_size=8)
    assert import_cache(moved, export_cache(stayed, [1])) == range(1)
    assert import_cache(moved, export_cache(stayed, [0])) == range(1, 2)
    with torch.no_grad():
        pos = torch.tensor([[2], [5]])
        moved.prepare_step([0, 1], pos)
        stayed.prepare_step([1, 0], pos)
        got, wanted = (model.decode(torch.tensor([[3], [4]]), pos, x) for x in (moved, stayed))
    torch.testing.assert_close(got, wanted)


def test_another_process_goes_on_with_the_same_tokens(tmp_path: Path) -> None:
    model = make()
    stayed = fill(model)
    (tmp_path / "rows").write_bytes(export_cache(stayed, [0, 1]))
    torch.save(model.state_dict(), tmp_path / "weights")
    code = f"""
import torch
from polyhead import Choice, ModelConfig, build
from polyhead.cache.factory import make_cache
from polyhead.cache.transfer import import_cache
model = build(ModelConfig(**{SIZES}), seed=9).eval()
model.load_state_dict(torch.load({str(tmp_path / "weights")!r}))
cache = make_cache(Choice("static"), model.cache_shape, 0, 16)
import_cache(cache, open({str(tmp_path / "rows")!r}, "rb").read())
pos = torch.tensor([[5], [2]])
cache.prepare_step([0, 1], pos)
torch.set_grad_enabled(False)
print(model.decode(torch.tensor([[3], [4]]), pos, cache).tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        pos = torch.tensor([[5], [2]])
        stayed.prepare_step([0, 1], pos)
        assert eval(done.stdout) == model.decode(torch.tensor([[3], [4]]), pos, stayed).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "growing"}, "are those of cache 'static', but this cache is 'growing'"),
        ({"max_len": 4}, "position 4 does not fit into a cache of 4 positions"),
        ({"n_layers": 1}, "'layers.1.k' is not among"),
        ({"n_layers": 3}, "'layers.2.k' is missing"),
        (
            {"n_kv_heads": 4},
            r"'layers.0.k' is torch.float32 of shape \(2, 2, 17, 4\), expected .* \(2, 4, 17, 4\)",
        ),
    ],
    ids=str,
)
def test_rows_of_another_cache_or_model_are_refused(options: dict[str, Any], message: str) -> None:
    data, rest = export_cache(fill(make()), [0, 1]), dict(options)
    choice = {name: rest.pop(name) for name in ("name", "max_len") if name in rest}
    cache = empty(make(**rest), **choice)
    with pytest.raises(UserError, match=message):
        import_cache(cache, data)
    assert cache.memory_usage().used_bytes == 0


def test_rows_of_another_dtype_are_refused() -> None:
    with pytest.raises(UserError, match=r"'layers.0.k' is torch.float32 .*, expected torch.bfloat16"):
        import_cache(empty(make().bfloat16()), export_cache(fill(make()), [0, 1]))
    with pytest.raises(UserError, match=r"'layers.0.k' is torch.float32 .*, expected torch.bfloat16"):
        import_cache(empty(make().bfloat16(), "paged"), export_cache(fill(make(), "paged"), [0, 1]))


@pytest.mark.parametrize("name", ["static", "paged"])
def test_what_is_no_exported_cache_is_refused(name: str) -> None:
    cache = empty(make(), name)
    metadata = {"format": FORMAT, "cache": name}
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


def test_rows_that_do_not_fit_into_the_blocks_leave_the_cache_as_it_was() -> None:
    model = make()
    data, cache = (
        export_cache(fill(model, "paged"), [0, 1]),
        empty(model, "paged", block_size=2, max_blocks=3),
    )
    with pytest.raises(OutOfBlocksError):
        import_cache(cache, data)
    import_cache(cache, export_cache(fill(model, "paged"), [0]))
    cache.prepare_step([0], torch.tensor([[5]]))


def test_directions_of_low_rank_come_along_and_must_be_the_same() -> None:
    model = make()
    data, cache = export_cache(fill(model, "low_rank", rank=2), [0, 1]), empty(model, "low_rank", rank=2)
    import_cache(cache, data)
    import_cache(cache, data)
    with pytest.raises(UserError, match="projected to other directions"):
        import_cache(fill(make(2), "low_rank", rank=2), data)
    with pytest.raises(UserError, match=r"'layers.0.basis_k' is .* of shape \(2, 4, 2\), expected"):
        import_cache(empty(model, "low_rank", rank=1), data)


def test_no_rows_and_rows_without_tokens_can_be_moved() -> None:
    model = make()
    for name in ("static", "growing", "paged", "quantized", "h2o", "window", "subgen"):
        cache, other = fill(model, name), empty(model, name)
        import_cache(other, export_cache(cache, []))
        cache.release(0)
        import_cache(other, export_cache(cache, [0]))
        other.prepare_step([0], torch.tensor([[0]]))


def test_a_cache_of_several_parts_takes_all_of_the_rows_or_nothing() -> None:
    hybrid = make(layer_pattern=[{"attention": {"name": "linear"}}, {}])
    cache, wider = (
        fill(hybrid),
        empty(make(layer_pattern=[{"attention": {"name": "linear"}}, {}], n_kv_heads=4)),
    )
    tensors = cache.export_rows([0, 1])
    other = empty(hybrid)
    lacking = {name: x for name, x in tensors.items() if name != "caches.1.lengths"}
    for wrong, message in (
        (lacking, "expected integers 'lengths'"),
        (tensors | {"caches.2.k": tensors["caches.0.lengths"]}, "'caches.2.k', which is of none"),
        (tensors | {"lengths": tensors["caches.0.lengths"]}, "'lengths', which is of none"),
    ):
        with pytest.raises(UserError, match=message):
            other.import_rows(wrong)
        assert [part.num_rows for part in (other, *other.caches)] == [0, 0, 0]
    with pytest.raises(UserError, match="another model or other options"):
        wider.import_rows(tensors)
    assert import_cache(other, export_cache(cache, [0, 1])) == range(2)


@pytest.mark.parametrize("name", ["static", "paged"])
@torch.inference_mode()
def test_kernels_go_on_with_moved_rows(name: str) -> None:
    packed = pack_model(make())
    assert isinstance(packed, CausalLM)
    stayed, moved = fill(packed, name), empty(packed, name)
    import_cache(moved, export_cache(stayed, [0, 1]))
    for t in range(3):
        pos, logits = torch.tensor([[5 + t], [2 + t]]), []
        for cache in (stayed, moved):
            cache.prepare_step([0, 1], pos)
            logits.append(packed.decode(torch.tensor([[3 + t], [4]]), pos, cache))
        assert torch.equal(*logits)
