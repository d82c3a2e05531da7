"""A training forward asks the device for no number: each such question waits for all of its work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.device.ghost import DEVICE, NAME, Ghost, haunted
from tests.device.models import KINDS, PARTS, SIZES
from tests.train.conftest import Notes, unsynced
from tests.train.distributed.rank_runs import place, recipe_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import polyhead as ph
from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.registry import TASK
from polyhead.generation.engine.batching import pad_next_inputs
from polyhead.models import build
from polyhead.nn import block_mask
from polyhead.nn.block_mask import Visibility
from polyhead.nn.device import to_model_device
from polyhead.nn.feed_forward import grouped_experts
from polyhead.nn.loss import IGNORE_INDEX, cross_entropy
from polyhead.train import loop
from polyhead.train.run_training import run_training

__all__ = ["place", "unsynced"]
pytestmark = pytest.mark.usefixtures("unsynced")
# whose result, or its shape, depends on numbers
ASKING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::bincount",
    "aten::equal",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::repeat_interleave",
}
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class Questions(TorchDispatchMode):
    """The operations that a device cannot do before the CPU knows the numbers of others."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func._schema.name
        ghosts = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Ghost)]
        by_mask = name in INDEXED and any(x is not None and x.dtype == torch.bool for x in args[1])
        left = isinstance(out, torch.Tensor) and not isinstance(out, Ghost)
        if ghosts and (name in ASKING or by_mask or left):
            self.asked.append(name)
        return out


@contextmanager
def questions() -> Iterator[list[str]]:
    """With what Python reads of a tensor by a way that no dispatch sees."""
    mode, tolist = Questions(), Ghost.tolist

    def noted(self: Ghost) -> Any:
        mode.asked.append("tolist")
        return tolist(self)

    Ghost.tolist = noted  # type: ignore[method-assign]
    try:
        with mode:
            yield mode.asked
    finally:
        Ghost.tolist = tolist  # type: ignore[method-assign]


def test_a_question_is_noticed() -> None:
    with haunted() as device, questions() as asked:
        x = torch.arange(4, device=device)
        assert not asked
        assert x[2] == 2
        x[x > 1], x.nonzero(), x.cpu(), x.tolist(), x.max().item()
    assert sorted(set(asked)) == [
        "aten::_local_scalar_dense",
        "aten::_to_copy",
        "aten::index",
        "aten::nonzero",
        "tolist",
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", PARTS, ids=str)
def test_a_training_forward_asks_nothing(
    kind: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor its backward pass: with padding, and with documents in a row."""
    # torch has no autocast for a device of Python
    monkeypatch.setattr(grouped_experts, "product_dtype", lambda x: torch.bfloat16)
    sizes = SIZES | {"kind": kind, "dropout": 0.1}
    with haunted() as device:
        model = build(ph.ModelConfig.model_validate({**sizes, **changes}), seed=1).to(device).train()
        tokens, pos = torch.randint(0, 50, (3, 9)), torch.arange(9).repeat(3, 1)
        pos[1, 6:] = -1
        if kind != "encoder-decoder":
            pos[0, 4:] = torch.arange(5)
        tokens, pos, labels = to_model_device(model, (tokens, pos, tokens.masked_fill(pos < 0, IGNORE_INDEX)))
        given = (tokens, tokens, pos, pos) if kind == "encoder-decoder" else (tokens, pos)
        with questions() as asked:
            loss = cross_entropy(model.features(*given), model.head, labels, 0.1)
            loss.total.backward()
    assert not asked


def test_documents_have_block_masks_on_devices_with_kernels_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made once for layers alike, and without a question."""
    monkeypatch.setattr(block_mask, "BLOCK_SIZE", 4)
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DTYPES", {torch.float32})
    layers = [{}, {"attention": {"name": "softmax", "window": 3, "sink": 1}}]
    sizes = SIZES | {"kind": "decoder", "d_model": 64, "n_layers": 4, "layer_pattern": layers}
    tokens, pos = torch.randint(0, 50, (3, 9)), torch.arange(9).repeat(3, 1)
    pos[1, 6:], pos[0, 4:] = -1, torch.arange(5)

    def noted(model: Any) -> dict[Visibility, Any]:
        model.stack.has_compiled_layers = True
        moved = to_model_device(model, (tokens, pos.clone()))
        with questions() as asked:
            model.features(*moved)
        assert not asked
        masks: dict[Visibility, Any] = moved[1].block_masks
        return masks

    model = build(ph.ModelConfig.model_validate(sizes), seed=1)
    with haunted() as device:
        there = build(ph.ModelConfig.model_validate(sizes), seed=1).to(device)
        assert not noted(there)
        monkeypatch.setattr(block_mask, "BLOCK_MASK_DEVICES", {NAME})
        found = noted(there)
    assert not noted(model)
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DEVICES", {"cpu"})
    wanted = noted(model)
    assert set(found) == set(wanted) == {Visibility(True), Visibility(True, 3, 1)}
    for visibility, mask in wanted.items():
        for a, b in zip(found[visibility].as_tuple(), mask.as_tuple(), strict=True):
            assert isinstance(a, Ghost) == isinstance(b, torch.Tensor)
            assert not isinstance(a, Ghost) or torch.equal(a.raw, b)


@pytest.mark.parametrize("task", TASK.names())
def test_a_step_of_a_task_asks_for_its_numbers_alone(
    task: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss, gradients, clipping, optimizer and average; loss and norm are copied to the CPU at its end."""
    found: list[list[str]] = []
    step = loop.train_step

    def observed(*rest: Any) -> str:
        with questions() as asked:
            reason = step(*rest)
        found.append(asked)
        return reason

    monkeypatch.setattr(loop, "train_step", observed)
    with haunted():
        recipe = recipe_of(
            place, task, f"{task}-asks", precision="fp32", ema=0.9, steps=3, device=str(DEVICE)
        )
        run_training(recipe, report=Notes())
    assert found == [["aten::_to_copy"]] * 3


@pytest.mark.parametrize("position", ["rope", "alibi", "sinusoidal", "disentangled"])
@torch.no_grad()
def test_a_decoding_step_asks_nothing(position: str) -> None:
    """With the cache that a graph can be captured over; the positions are known to the CPU."""
    with haunted() as device:
        sizes = SIZES | {"kind": "decoder", "position": position}
        model = build(ph.ModelConfig.model_validate(sizes), seed=1).to(device).eval()
        cache = make_cache(Choice("static", preallocate=True), model.cache_shape, 3, 20)
        with questions() as asked:
            for t in range(3):
                tokens, pos = pad_next_inputs([[7 + t], [8], [9]], [t, t, t], device)
                cache.prepare_step(range(3), pos)
                model.decode(tokens, pos, cache)
    assert not asked
