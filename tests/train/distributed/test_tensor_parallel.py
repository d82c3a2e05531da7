"""What a split model holds, sends and draws; that it learns as one process is a law of tests/laws."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from tests.laws.test_tensor_parallel import LabelTask as Labels
from tests.laws.test_tensor_parallel import compare_training as difference
from tests.laws.test_tensor_parallel import gather_weight as whole
from tests.laws.test_tensor_parallel import make_batch as rows
from tests.laws.test_tensor_parallel import make_config as design
from tests.laws.test_tensor_parallel import make_model as fresh
from tests.laws.test_tensor_parallel import train_steps as learn
from tests.train.several import together
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from polyhead.config.config_sections import LoraConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import ATTENTION, POSITION
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.loss import cross_entropy
from polyhead.nn.position.base import Position
from polyhead.nn.stack import recompute_blocks
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.tensor_parallel import find_tensor_obstacle, split_tensors
from polyhead.train.loss_module import LossModule
from polyhead.train.trainable_parameters import add_lora

DECODER = {"kind": "decoder", "position": {"name": "rope"}, "norm_first": True, "dropout": 0.0}
DROPOUT = {"attention": {"name": "softmax", "dropout": 0.5}, "feed_forward": {"name": "gelu", "dropout": 0.5}}


def split(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    model = copy.deepcopy(model)
    split_tensors(model, mesh)
    return model


def loss_of(model: nn.Module) -> Tensor:
    return LossModule(model, Labels())(rows(model.config)).total


def count_sums(mesh: DeviceMesh, **changes: Any) -> list[int]:
    """All-reduces of a forward and a backward pass that one more layer adds."""
    counts = []
    for n_layers in (1, 2):
        model = split(fresh(design(DECODER | changes, n_layers=n_layers)), mesh)
        with CommDebugMode() as forward:
            loss = loss_of(model)
        with CommDebugMode() as backward:
            loss.backward()
        counts.append([forward.get_total_counts(), backward.get_total_counts()])
    return [b - a for a, b in zip(*counts, strict=True)]


class Widths(TorchDispatchMode):
    """Counts the last dimensions of all tensors that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.counts.update(x.size(-1) for x in tree_iter(out) if isinstance(x, Tensor) and x.dim() > 1)
        return out


def widths_of_the_loss(mesh: DeviceMesh) -> list[int]:
    model = split(fresh(design(DECODER, vocab_size=38, tie_embeddings="none")), mesh)
    inputs, labels = rows(model.config)
    features = model.features(*inputs)
    with Widths() as widths:
        cross_entropy(features, model.head, labels, 0.1).total.backward()
    return sorted(widths.counts)


def held(mesh: DeviceMesh) -> list[int]:
    """Numbers stored for the weights, and those of the whole model."""
    model = split(fresh(design(DECODER, vocab_size=20, norm={"name": "none"})), mesh)
    storages = {
        p.to_local().untyped_storage().data_ptr(): p.to_local().untyped_storage() for p in model.parameters()
    }
    return [sum(x.nbytes() for x in storages.values()) // 8, sum(p.numel() for p in model.parameters())]


def logits_difference(mesh: DeviceMesh) -> float:
    one = fresh(design(DECODER, lm_head_bias=True, logit_softcap=3.0)).eval()
    tokens = rows(one.config)[0][0]
    other = split(one, mesh)
    (one(tokens).sin().sum() + 0).backward()
    other(tokens).sin().sum().backward()
    grads = [
        (whole(a.grad) - b.grad).abs().max()
        for a, b in zip(other.parameters(), one.parameters(), strict=True)
    ]
    return max(float((other(tokens) - one(tokens)).detach().abs().max()), *map(float, grads))


def draws(mesh: DeviceMesh) -> dict[str, Any]:
    """The elements that are dropped in a split part and in a residual, and the random state after them."""
    model = split(fresh(design(DECODER, dropout=0.5, **DROPOUT)), mesh).train()
    block, ones = model.stack.layers[0], torch.ones(1, 2, 16, dtype=torch.float64)
    found: dict[str, Any] = {}
    handle = block.ffn.dropout.register_forward_hook(
        lambda module, x, out: found.update(part=(out == 0).flatten().tolist())
    )
    torch.manual_seed(7)
    block.ffn(ones)
    handle.remove()
    found["residual"] = (block.ffn_residual.dropout(ones) == 0).flatten().tolist()
    learn(LossModule(model, Labels()))
    found["state"] = torch.get_rng_state().tolist()
    found["norm"] = whole(model.stack.final_norm._parameters["weight"]).tolist()
    return found


def lora_difference(mesh: DeviceMesh) -> float:
    one = fresh(design(DECODER, n_kv_heads=2))
    config = LoraConfig(r=2, target_modules=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"))
    add_lora(one, config, seed=1)
    with torch.no_grad():
        for name, p in one.named_parameters():
            if "lora" in name:
                p.add_(0.1)
    return difference(LossModule(one, Labels()), LossModule(split(one, mesh), Labels()))


def recomputed_difference(mesh: DeviceMesh) -> float:
    """Of a split model with and without recomputation, with dropout in all places."""
    one = split(fresh(design(DECODER, dropout=0.3, **DROPOUT)), mesh)
    other = split(fresh(design(DECODER, dropout=0.3, **DROPOUT)), mesh)
    recompute_blocks(other)
    return difference(LossModule(one, Labels()), LossModule(other, Labels()))


def bf16_difference(mesh: DeviceMesh) -> list[float]:
    """The relative difference of gradients in bf16, one process and several, to those in fp64."""
    one = fresh(design(DECODER, norm={"name": "rmsnorm"}))
    loss_of(one).backward()
    relative = []
    for model in (copy.deepcopy(one).float(), split(copy.deepcopy(one).float(), mesh)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model)
        loss.backward()
        pairs = zip(model.parameters(), one.parameters(), strict=True)
        relative.append([float((whole(a.grad) - b.grad).norm() / b.grad.norm()) for a, b in pairs])
    return [max(errors) for errors in relative]


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each of two ranks found; one pair of processes for all tests."""

    def work(ranks: ProcessGroup) -> dict[str, Any]:
        mesh = init_device_mesh("cpu", (ranks.world_size,))
        return {
            "sums": [
                count_sums(mesh),
                count_sums(mesh, feed_forward={"name": "swiglu"}, block={"name": "parallel"}),
            ],
            "widths": widths_of_the_loss(mesh),
            "held": held(mesh),
            "logits": logits_difference(mesh),
            "draws": draws(mesh),
            "lora": lora_difference(mesh),
            "recomputed": recomputed_difference(mesh),
            "bf16": bf16_difference(mesh),
        }

    ends = together(2, work, timeout=60)
    assert [end.code for end in ends] == [0, 0], ends
    return [end.said for end in ends]


def test_a_layer_sums_twice_forward_and_twice_backward(found: list[dict[str, Any]]) -> None:
    assert [rank["sums"] for rank in found] == [[[2, 2], [2, 2]]] * 2


def test_no_rank_makes_logits_of_the_whole_vocabulary(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert 19 in rank["widths"] and 38 not in rank["widths"]


def test_a_rank_stores_its_share_of_the_weights(found: list[dict[str, Any]]) -> None:
    for rank in found:
        stored, total = rank["held"]
        bias_of_rows = 2 * 2 * 16  # o_proj's and down_proj's, which are whole
        assert stored == (total - bias_of_rows) // 2 + bias_of_rows


def test_logits_are_whole_where_no_loss_is_taken(found: list[dict[str, Any]]) -> None:
    assert max(rank["logits"] for rank in found) < 1e-12


def test_split_parts_drop_other_elements_on_each_rank_and_residuals_the_same(
    found: list[dict[str, Any]],
) -> None:
    one, other = (rank["draws"] for rank in found)
    assert one["part"] != other["part"] and 0.2 < sum(one["part"]) / len(one["part"]) < 0.8
    assert one["residual"] == other["residual"] and 0 < sum(one["residual"]) < len(one["residual"])
    assert one["state"] == other["state"] and one["norm"] == other["norm"]


def test_adapters_learn_as_on_one_process(found: list[dict[str, Any]]) -> None:
    assert max(rank["lora"] for rank in found) < 1e-12


def test_recomputed_blocks_draw_the_same_numbers(found: list[dict[str, Any]]) -> None:
    assert [rank["recomputed"] for rank in found] == [0, 0]


def test_bf16_is_as_exact_as_on_one_process(found: list[dict[str, Any]]) -> None:
    for rank in found:
        one, split = rank["bf16"]
        assert 0.001 < one < 0.03 and split < 2 * one


@pytest.mark.slow
def test_sharded_over_the_other_dimension_it_learns_as_one_process() -> None:
    def work(ranks: ProcessGroup) -> float:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
        one = fresh(design(DECODER, n_kv_heads=2, attention={"name": "softmax", "qk_norm": True}))
        root = LossModule(split(one, mesh["tensor"]), Labels())
        size = sum(p.to_local().numel() for p in root.parameters())
        for block in root.model.stack.layers:
            fully_shard(block, mesh=mesh["shard"])
        fully_shard(root, mesh=mesh["shard"])
        for part in root.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(2.0)  # both have the same rows
                part.set_force_sum_reduction_for_comms(True)
        assert sum(p.to_local().numel() for p in root.parameters()) < 0.6 * size
        return difference(LossModule(one, Labels()), root)

    ends = together(4, work, timeout=60)
    assert [end.code for end in ends] == [0] * 4, ends
    assert max(end.said for end in ends) < 1e-12


ADVICE = ": tensor must divide their number"


class Undeclared(nn.Module):
    """Attention whose author has not thought of ranks."""

    def __init__(self, shape: Any, position: Position) -> None:
        super().__init__()
        self.position = position


class Extended(Attention):
    """Attention with a weight that its inherited declaration does not name."""

    def __init__(self, shape: Any, position: Position) -> None:
        super().__init__(shape, position)
        self.gate = nn.Parameter(torch.zeros(shape.n_heads))


class UndeclaredScores(Position):
    def bias(self, *args: Any) -> None:
        return None


def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTENTION._parts, "undeclared", Undeclared)
    monkeypatch.setitem(ATTENTION._parts, "extended", Extended)
    monkeypatch.setitem(POSITION._parts, "undeclared", UndeclaredScores)

    def obstacle(size: int = 2, **changes: Any) -> str | None:
        return find_tensor_obstacle(design(DECODER | changes), size)

    def declares_nothing(name: str) -> str:
        return f"{name} does not declare how it splits over ranks: set its tensor_split"

    assert obstacle() is None
    assert obstacle(4, n_kv_heads=2) == f"2 key/value heads cannot be divided by 4{ADVICE}"
    assert obstacle(8) == f"4 query heads cannot be divided by 8{ADVICE}"
    assert obstacle(d_ff=21) == f"the 21 features of FeedForward cannot be divided by 2{ADVICE}"
    assert obstacle(4, vocab_size=5) == "a vocabulary of 5 tokens is too small for 4 ranks"
    assert obstacle(attention={"name": "undeclared"}) == declares_nothing("Undeclared")
    assert obstacle(position={"name": "undeclared"}) == declares_nothing("UndeclaredScores")
    assert (
        obstacle(attention={"name": "extended"}) == "tensor_split of Extended does not name its weight gate"
    )


def test_a_refused_model_is_unchanged() -> None:
    class Mesh:
        def size(self) -> int:
            return 8

        def get_local_rank(self) -> int:
            return 0

    model = fresh(design(DECODER))
    before = {name: id(p) for name, p in model.named_parameters()}
    with pytest.raises(UserError, match="4 query heads cannot be divided by 8"):
        split_tensors(model, Mesh())  # type: ignore[arg-type]
    assert {name: id(p) for name, p in model.named_parameters()} == before
