"""What a sharded model stores, sends and draws; tests/laws compares its training with one process."""

import copy
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.laws.test_tensor_parallel import (
    LabelTask,
    compare_training,
    gather_weight,
    make_batch,
    make_config,
    make_model,
    train_steps,
)
from tests.train.conftest import user_error
from tests.train.ranks import outputs_of
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from polyhead.config.config_sections import LoraConfig
from polyhead.core.registry import ATTENTION, POSITION
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.loss import cross_entropy
from polyhead.nn.position.base import Position
from polyhead.nn.stack import recompute_blocks
from polyhead.train.distributed.tensor_parallel import find_tensor_obstacle, shard_tensors
from polyhead.train.loss_module import LossModule
from polyhead.train.trainable_parameters import add_lora

DECODER = {"kind": "decoder", "position": {"name": "rope"}, "norm_first": True, "dropout": 0.0}
DROPOUT = {"attention": {"name": "softmax", "dropout": 0.5}, "feed_forward": {"name": "gelu", "dropout": 0.5}}


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    model = copy.deepcopy(model)
    shard_tensors(model, mesh)
    return model


def loss_of(model: nn.Module) -> Tensor:
    return LossModule(model, LabelTask())(make_batch(model.config)).total


def count_sums(mesh: DeviceMesh, **changes: Any) -> list[int]:
    counts = []
    for n_layers in (1, 2):
        model = shard(make_model(make_config(DECODER | changes, n_layers=n_layers)), mesh)
        with CommDebugMode() as forward:
            loss = loss_of(model)
        with CommDebugMode() as backward:
            loss.backward()
        counts.append([forward.get_total_counts(), backward.get_total_counts()])
    return [b - a for a, b in zip(*counts, strict=True)]


class Widths(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.counts.update(x.size(-1) for x in tree_iter(out) if isinstance(x, Tensor) and x.dim() > 1)
        return out


def widths_of_loss(mesh: DeviceMesh) -> list[int]:
    model = shard(make_model(make_config(DECODER, vocab_size=38, tie_embeddings="none")), mesh)
    inputs, labels = make_batch(model.config)
    features = model.features(*inputs)
    with Widths() as widths:
        cross_entropy(features, model.head, labels, 0.1).total.backward()
    return sorted(widths.counts)


def count_stored(mesh: DeviceMesh) -> list[int]:
    """Numbers stored for the weights, and those of the full model."""
    model = shard(make_model(make_config(DECODER, vocab_size=20, norm={"name": "none"})), mesh)
    storages = [p.to_local().untyped_storage() for p in model.parameters()]
    n_bytes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return [sum(n_bytes.values()) // 8, sum(p.numel() for p in model.parameters())]


def logits_difference(mesh: DeviceMesh) -> float:
    one = make_model(make_config(DECODER, lm_head_bias=True, logit_softcap=3.0)).eval()
    tokens = make_batch(one.config)[0][0]
    other = shard(one, mesh)
    (one(tokens).sin().sum() + 0).backward()
    other(tokens).sin().sum().backward()
    pairs = zip(other.parameters(), one.parameters(), strict=True)
    grads = [float((gather_weight(a.grad) - b.grad).abs().max()) for a, b in pairs]
    return max(float((other(tokens) - one(tokens)).detach().abs().max()), *grads)


def draw_dropout(mesh: DeviceMesh) -> dict[str, Any]:
    """The elements that are dropped in a sharded part and in a residual, and the random state after them."""
    model = shard(make_model(make_config(DECODER, dropout=0.5, **DROPOUT)), mesh).train()
    block, ones = model.stack.layers[0], torch.ones(1, 2, 16, dtype=torch.float64)
    draws: dict[str, Any] = {}
    handle = block.ffn.dropout.register_forward_hook(
        lambda module, x, out: draws.update(part=(out == 0).flatten().tolist())
    )
    torch.manual_seed(7)
    block.ffn(ones)
    handle.remove()
    draws["residual"] = (block.ffn_residual.dropout(ones) == 0).flatten().tolist()
    train_steps(LossModule(model, LabelTask()))
    draws["state"] = torch.get_rng_state().tolist()
    draws["norm"] = gather_weight(model.stack.final_norm._parameters["weight"]).tolist()
    return draws


def lora_difference(mesh: DeviceMesh) -> float:
    one = make_model(make_config(DECODER, n_kv_heads=2))
    config = LoraConfig(r=2, target_modules=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"))
    add_lora(one, config, seed=1)
    with torch.no_grad():
        for name, p in one.named_parameters():
            if "lora" in name:
                p.add_(0.1)
    return compare_training(LossModule(one, LabelTask()), LossModule(shard(one, mesh), LabelTask()))


def recompute_difference(mesh: DeviceMesh) -> float:
    one = shard(make_model(make_config(DECODER, dropout=0.3, **DROPOUT)), mesh)
    other = shard(make_model(make_config(DECODER, dropout=0.3, **DROPOUT)), mesh)
    recompute_blocks(other)
    return compare_training(LossModule(one, LabelTask()), LossModule(other, LabelTask()))


def bf16_difference(mesh: DeviceMesh) -> list[float]:
    """The relative difference of gradients in bf16, one process and several, to those in fp64."""
    one = make_model(make_config(DECODER, norm={"name": "rmsnorm"}))
    loss_of(one).backward()
    relative = []
    for model in (copy.deepcopy(one).float(), shard(copy.deepcopy(one).float(), mesh)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model)
        loss.backward()
        pairs = zip(model.parameters(), one.parameters(), strict=True)
        relative.append([float((gather_weight(a.grad) - b.grad).norm() / b.grad.norm()) for a, b in pairs])
    return [max(errors) for errors in relative]


@pytest.fixture(scope="module")
def results():
    def work(ranks):
        mesh = init_device_mesh("cpu", (ranks.world_size,))
        parallel_block = {"feed_forward": {"name": "swiglu"}, "block": {"name": "parallel"}}
        return {
            "sums": [count_sums(mesh), count_sums(mesh, **parallel_block)],
            "widths": widths_of_loss(mesh),
            "sizes": count_stored(mesh),
            "logits": logits_difference(mesh),
            "draws": draw_dropout(mesh),
            "lora": lora_difference(mesh),
            "recompute": recompute_difference(mesh),
            "bf16": bf16_difference(mesh),
        }

    return outputs_of(2, work)


def test_sharded_model_stores_and_sends_its_share(results):
    for rank in results:
        assert rank["sums"] == [[2, 2], [2, 2]]  # of each layer, forward and backward
        assert 19 in rank["widths"] and 38 not in rank["widths"]  # no logits of the full vocabulary
        n_stored, total = rank["sizes"]
        n_replicated = 2 * 2 * 16  # the biases of o_proj and down_proj
        assert n_stored == (total - n_replicated) // 2 + n_replicated


def test_sharded_model_computes_like_one_process(results):
    for rank in results:
        assert max(rank["logits"], rank["lora"]) < 1e-12 and rank["recompute"] == 0
        single, sharded_model = rank["bf16"]
        assert 0.001 < single < 0.03 and sharded_model < 2 * single
    # dropout differs in sharded parts, not in residuals
    a, b = (rank["draws"] for rank in results)
    assert a["part"] != b["part"] and 0.2 < sum(a["part"]) / len(a["part"]) < 0.8
    assert a["residual"] == b["residual"] and 0 < sum(a["residual"]) < len(a["residual"])
    assert a["state"] == b["state"] and a["norm"] == b["norm"]


@pytest.mark.slow
def test_shard_and_tensor_mesh_matches_one_process():
    def work(ranks):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
        single = make_model(
            make_config(DECODER, n_kv_heads=2, attention={"name": "softmax", "qk_norm": True})
        )
        root = LossModule(shard(single, mesh["tensor"]), LabelTask())
        size = sum(p.to_local().numel() for p in root.parameters())
        for block in root.model.stack.layers:
            fully_shard(block, mesh=mesh["shard"])
        fully_shard(root, mesh=mesh["shard"])
        for part in root.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(2.0)  # both have the same rows
                part.set_force_sum_reduction_for_comms(True)
        assert sum(p.to_local().numel() for p in root.parameters()) < 0.6 * size
        return compare_training(LossModule(single, LabelTask()), root)

    assert max(outputs_of(4, work)) < 1e-12


class Undeclared(nn.Module):
    def __init__(self, shape, position):
        super().__init__()
        self.position = position


class Extended(Attention):
    """Attention with a weight that its inherited declaration does not name."""

    def __init__(self, shape, position):
        super().__init__(shape, position)
        self.gate = nn.Parameter(torch.zeros(shape.n_heads))


class UndeclaredScores(Position):
    def bias(self, *args):
        return None


def test_obstacles_name_the_reason(monkeypatch):
    monkeypatch.setitem(ATTENTION._parts, "undeclared", Undeclared)
    monkeypatch.setitem(ATTENTION._parts, "extended", Extended)
    monkeypatch.setitem(POSITION._parts, "undeclared", UndeclaredScores)

    def find_obstacle(size=2, **changes):
        return find_tensor_obstacle(make_config(DECODER | changes), size)

    advice = ": tensor must divide their number"
    undeclared_message = "{} does not declare how it splits over ranks: set its shard_plan"
    assert find_obstacle() is None
    assert find_obstacle(4, n_kv_heads=2) == f"2 key/value heads cannot be divided by 4{advice}"
    assert find_obstacle(8) == f"4 query heads cannot be divided by 8{advice}"
    assert find_obstacle(d_ff=21) == f"the 21 features of FeedForward cannot be divided by 2{advice}"
    assert find_obstacle(4, vocab_size=5) == "a vocabulary of 5 tokens is too small for 4 ranks"
    assert find_obstacle(attention={"name": "undeclared"}) == undeclared_message.format("Undeclared")
    assert find_obstacle(position={"name": "undeclared"}) == undeclared_message.format("UndeclaredScores")
    reason = "shard_plan of Extended does not name its weight gate"
    assert find_obstacle(attention={"name": "extended"}) == reason
    model = make_model(make_config(DECODER))
    initial_ids = [id(p) for p in model.parameters()]
    with user_error("4 query heads cannot be divided by 8"):
        shard_tensors(model, SimpleNamespace(size=lambda: 8, get_local_rank=lambda: 0))
    assert [id(p) for p in model.parameters()] == initial_ids
