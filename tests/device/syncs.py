"""Training and decoding steps do not synchronise with the device, which would wait for all of its work."""

from contextlib import contextmanager

import pytest
import torch
from tests.device.ghost import DEVICE, INDEX_OPERATIONS, NAME, Ghost, ghost_device
from tests.device.models import KINDS, PARTS, SIZES
from tests.train.conftest import Notes, no_fsync
from tests.train.distributed.rank_runs import corpus_dir, recipe_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import polyhead as ph
from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.registry import TASK
from polyhead.generation.engine.request import start_step
from polyhead.models import build
from polyhead.nn import block_mask, stack
from polyhead.nn.block_mask import make_block_masks
from polyhead.nn.device import place_batch
from polyhead.nn.feed_forward import moe as grouped_experts
from polyhead.nn.loss import IGNORE_INDEX, cross_entropy
from polyhead.nn.positions import Positions, Visibility
from polyhead.train import loop
from polyhead.train.run_training import run_training

__all__ = ["corpus_dir", "no_fsync"]
pytestmark = pytest.mark.usefixtures("no_fsync")
# the result, or its shape, depends on values on the device
SYNCING_OPERATIONS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::bincount"}
SYNCING_OPERATIONS |= {"aten::equal", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"}
SYNCING_OPERATIONS |= {"aten::repeat_interleave"}


class SyncRecorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.syncs = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out, name = func(*args, **(kwargs or {})), func._schema.name
        ghosts = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Ghost)]
        by_mask = name in INDEX_OPERATIONS and any(x is not None and x.dtype == torch.bool for x in args[1])
        is_copied = isinstance(out, torch.Tensor) and not isinstance(out, Ghost)
        if ghosts and (name in SYNCING_OPERATIONS or by_mask or is_copied):
            self.syncs.append(name)
        return out


@contextmanager
def record_syncs():
    """Record also ``tolist``, which bypasses the dispatcher."""
    mode, tolist = SyncRecorder(), Ghost.tolist

    def record_tolist(self):
        mode.syncs.append("tolist")
        return tolist(self)

    Ghost.tolist = record_tolist
    try:
        with mode:
            yield mode.syncs
    finally:
        Ghost.tolist = tolist


def test_syncs_are_recorded():
    with ghost_device() as device, record_syncs() as syncs:
        x = torch.arange(4, device=device)
        assert not syncs
        assert x[2] == 2
        x[x > 1], x.nonzero(), x.cpu(), x.tolist(), x.max().item()
    names = {"aten::_local_scalar_dense", "aten::_to_copy", "aten::index", "aten::nonzero", "tolist"}
    assert set(syncs) == names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", PARTS, ids=str)
def test_training_forward_has_no_sync(kind, changes, monkeypatch):
    # torch has no autocast for Python devices
    monkeypatch.setattr(grouped_experts, "product_dtype", lambda x: torch.bfloat16)
    sizes = SIZES | {"kind": kind, "dropout": 0.1}
    with ghost_device() as device:
        model = build(ph.ModelConfig.model_validate({**sizes, **changes}), seed=1).to(device).train()
        tokens, pos = torch.randint(0, 50, (3, 9)), torch.arange(9).repeat(3, 1)
        pos[1, 6:] = -1
        if kind != "encoder-decoder":
            pos[0, 4:] = torch.arange(5)
        batch, host = place_batch(model, (tokens, pos, tokens.masked_fill(pos < 0, IGNORE_INDEX)))
        tokens, pos, labels = batch[0], Positions.of(batch[1], host[1]), batch[2]
        inputs = (tokens, tokens, pos, pos) if kind == "encoder-decoder" else (tokens, pos)
        with record_syncs() as syncs:
            loss = cross_entropy(model.features(*inputs), model.head, labels, 0.1, host=host[2])
            loss.total.backward()
    assert not syncs


def test_documents_use_block_masks(monkeypatch):
    """Built once for layers of the same visibility, without a synchronisation."""
    monkeypatch.setattr(block_mask, "BLOCK_SIZE", 4)
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DTYPES", {torch.float32})
    layers = [{}, {"attention": {"name": "softmax", "window": 3, "sink": 1}}]
    sizes = SIZES | {"kind": "decoder", "d_model": 64, "n_layers": 4, "layer_pattern": layers}
    tokens, pos = torch.randint(0, 50, (3, 9)), torch.arange(9).repeat(3, 1)
    pos[1, 6:], pos[0, 4:] = -1, torch.arange(5)

    made = []

    def record_masks(*inputs):
        made.append(make_block_masks(*inputs))
        return made[-1]

    def build_masks(model):
        model.stack.has_compiled_layers = True
        batch, host = place_batch(model, (tokens, pos.clone()))
        with record_syncs() as syncs:
            model.features(batch[0], Positions.of(batch[1], host[1]))
        assert not syncs
        return made[-1]

    monkeypatch.setattr(stack, "make_block_masks", record_masks)
    model = build(ph.ModelConfig.model_validate(sizes), seed=1)
    with ghost_device() as device:
        ghost_model = build(ph.ModelConfig.model_validate(sizes), seed=1).to(device)
        assert not build_masks(ghost_model)
        monkeypatch.setattr(block_mask, "BLOCK_MASK_DEVICES", {NAME})
        actual = build_masks(ghost_model)
    assert not build_masks(model)
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DEVICES", {"cpu"})
    expected = build_masks(model)
    assert set(actual) == set(expected) == {Visibility(True), Visibility(True, 3, 1)}
    for visibility, mask in expected.items():
        for a, b in zip(actual[visibility].as_tuple(), mask.as_tuple(), strict=True):
            assert isinstance(a, Ghost) == isinstance(b, torch.Tensor)
            assert not isinstance(a, Ghost) or torch.equal(a.raw, b)


@pytest.mark.parametrize("task", TASK.names())
def test_train_step_syncs_only_metrics(task, corpus_dir, monkeypatch):
    """Loss and gradient norm are copied to the CPU once, at the end of the step."""
    actual = []
    step = loop.train_step

    def record_step(*rest):
        with record_syncs() as syncs:
            reason = step(*rest)
        actual.append(syncs)
        return reason

    monkeypatch.setattr(loop, "train_step", record_step)
    with ghost_device():
        recipe = recipe_of(
            corpus_dir, task, f"{task}-asks", precision="fp32", ema=0.9, steps=3, device=str(DEVICE)
        )
        run_training(recipe, report=Notes())
    assert actual == [["aten::_to_copy"]] * 3


@pytest.mark.parametrize("position", ["rope", "alibi", "sinusoidal", "disentangled"])
@torch.no_grad()
def test_decoding_step_has_no_sync(position):
    with ghost_device() as device:
        sizes = SIZES | {"kind": "decoder", "position": position}
        model = build(ph.ModelConfig.model_validate(sizes), seed=1).to(device).eval()
        cache = make_cache(Choice("static", preallocate=True), model.cache_shape, 3, 20)
        with record_syncs() as syncs:
            for t in range(3):
                inputs = start_step(cache, range(3), [[7 + t], [8], [9]], [t, t, t], device)
                model.decode(*inputs, cache)
    assert not syncs
