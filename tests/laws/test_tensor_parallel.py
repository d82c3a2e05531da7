import copy

import pytest
import torch
from tests.laws.conftest import CASES, SIZES, VOCAB, perturb, ragged_positions
from tests.train.ranks import outputs_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from polyhead import ModelConfig, build
from polyhead.nn.loss import cross_entropy
from polyhead.train.distributed.tensor_parallel import find_tensor_obstacle, shard_tensors
from polyhead.train.loss_module import LossModule


def make_config(case, **changes):
    return ModelConfig.model_validate({"vocab_size": VOCAB, **SIZES, **case, **changes})


def make_batch(config):
    rng = torch.Generator().manual_seed(3)
    lengths = (5, 7) if config.kind == "encoder-decoder" else (7,)
    tokens = [torch.randint(5, VOCAB, (3, length), generator=rng) for length in lengths]
    positions = [ragged_positions(length, 2, 4) for length in lengths]
    labels = torch.randint(0, VOCAB, (3, 7), generator=rng).masked_fill(positions[-1] < 0, -100)
    return (*tokens, *positions), labels


class LabelTask:
    def count_labels(self, batch):
        return int((batch[1] >= 0).sum())

    def loss(self, model, batch):
        inputs, labels = batch
        return cross_entropy(model.features(*inputs), model.head, labels, 0.1, chunk=4)


def train_steps(module):
    """Losses of some steps with dropout in the residuals, which draws the same numbers on all ranks."""
    batch, losses = make_batch(module.model.config), []
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    module.train()
    for step in range(2):
        torch.manual_seed(step)
        loss = module(batch)
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += [float(loss.total.detach()), float(loss.nll)]
    return losses


def make_model(config):
    model = build(config, seed=1).double()
    perturb(model, 0.05, shrink=config.norm.name == "none")
    return model


def gather_weight(weight):
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def compare_training(one, other):
    differences = [abs(a - b) for a, b in zip(train_steps(one), train_steps(other), strict=True)]
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    weights = ((gather_weight(a) - gather_weight(b)).detach() for a, b in pairs)
    return max(*differences, *(float(difference.abs().max()) for difference in weights))


def compare_sharded(config, ranks):
    one = make_model(config)
    other = copy.deepcopy(one)
    shard_tensors(other, init_device_mesh("cpu", (ranks.world_size,)))
    assert [name for name, _ in other.named_parameters()] == [name for name, _ in one.named_parameters()]
    return compare_training(LossModule(one, LabelTask()), LossModule(other, LabelTask()))


def assert_sharded_equal(designs, world):
    """In fp64, where differences are faults and not rounding."""

    def compare(ranks):
        return {name: compare_sharded(config, ranks) for name, config in designs.items()}

    outputs = outputs_of(world, compare, timeout=100)
    differences = {name: max(output[name] for output in outputs) for name in designs}
    assert {name: value for name, value in differences.items() if not value <= 1e-10} == {}


def make_layer(attention, position):
    return {"attention": {"name": "softmax", **attention}, "position": {"name": position}}


PATTERN = [
    make_layer({"qk_norm": True, "window": 3, "sink": 1}, "rope"),
    make_layer({"qk_norm": "per_head", "tie": "kv"}, "t5"),
    make_layer({"qk_norm": "layernorm", "softcap": 2.0}, "disentangled"),
    make_layer({"bias": "o"}, "alibi"),
    make_layer({"tie": "kv", "bias": False}, "shaw"),
    {"attention": {"name": "linear"}, "position": {"name": "rope"}},
    {"attention": {"name": "kernel"}, "position": {"name": "none"}},
    {"block": {"name": "lstm"}},
]
"""Layers of one decoder, with each attention and each position that acts on heads."""

COMBINED_DESIGNS = {
    "decoder": {
        "kind": "decoder", "layer_pattern": PATTERN, "n_layers": len(PATTERN), "n_kv_heads": 2,
        "norm": {"name": "rmsnorm"}, "feed_forward": {"name": "prelu", "per_channel": True},
        "lm_head_bias": True, "logit_softcap": 5.0, "logits_scale": 2.0, "d_embedding": 6,
    },
    "encoder-decoder": {
        "cross_attention": {"name": "linear"}, "n_kv_heads": 2, "share_layers": True,
        "feed_forward": {"name": "moe", "n_experts": 3, "expert": "glu"}, "norm": {"name": "batchnorm"},
        "position": {"name": "learned"}, "tie_embeddings": "target",
    },
    "convolutions": {
        "block": {"name": "gated_conv"}, "decoder_block": {"name": "gru"}, "position": {"name": "none"},
        "tie_embeddings": "none", "lm_head_bias": True,
    },
    "encoder": {
        "kind": "encoder", "block": {"name": "parallel", "one_norm": True}, "norm_first": True,
        "n_kv_heads": 2, "feed_forward": {"name": "swiglu", "beta": "learned", "bias": True},
        "head_transform_activation": "gelu",
    },
}  # fmt: skip


def test_every_kind_of_shard_trains_as_one_process():
    designs = {name: make_config(case) for name, case in COMBINED_DESIGNS.items()}
    assert [find_tensor_obstacle(config, 2) for config in designs.values()] == [None] * len(designs)
    assert_sharded_equal(designs, 2)


def test_every_registered_part_is_sharded_or_refused(case):
    obstacle = None
    if "all_heads" in case:
        obstacle = "qk_norm=all_heads takes the norm over the heads of all ranks"
    elif "projections=none" in case:
        obstacle = "attention with projections=none has no weights that ranks could share"
    elif CASES[case].get("n_kv_heads") == 1:
        obstacle = "1 key/value heads cannot be divided by 2: tensor must divide their number"
    assert find_tensor_obstacle(make_config(CASES[case]), 2) == obstacle


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_every_design_trains_as_one_process(part):
    designs = {name: make_config(case) for name, case in list(CASES.items())[part::8]}
    assert_sharded_equal({name: c for name, c in designs.items() if find_tensor_obstacle(c, 2) is None}, 2)


@pytest.mark.slow
def test_four_ranks_train_as_one_process():
    designs = {name: make_config(case, n_kv_heads=4) for name, case in COMBINED_DESIGNS.items()}
    assert_sharded_equal(designs, 4)
