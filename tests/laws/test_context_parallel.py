import itertools
import json

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.laws.conftest import CASES, SIZES, VOCAB, choices, perturb, ragged_positions
from tests.train.ranks import outputs_of
from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.core.registry import ATTENTION, FEED_FORWARD, NORM, POSITION
from polyhead.data.batching.collate import PairBatch, shard_pair_tokens
from polyhead.data.batching.token_windows import TokenWindows, shard_windows
from polyhead.models import build
from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.nn.state import named_state
from polyhead.train.distributed.context_parallel import ContextGather, find_context_obstacle
from polyhead.train.tasks.language import LanguageModelingTask

KINDS = ("decoder", "encoder", "encoder-decoder")
DESIGNS = list(CASES.values())
PAIR_KEYS = {
    "encoder",
    "head_transform",
    "head_transform_activation",
    "decoder_block",
    "decoder_attention",
    "cross_attention",
    "n_decoder_layers",
    "tie_embeddings",
}
"""Keys of an encoder-decoder."""

WINDOW = {"attention": {"name": "softmax", "window": 3, "sink": 1}, "n_kv_heads": 2}
MODELS = [
    ("decoder", WINDOW | {"position": {"name": "rope"}, "norm": {"name": "batchnorm"}}),
    ("encoder", WINDOW | {"position": {"name": "shaw"}, "feed_forward": {"name": "moe"}}),
    ("encoder-decoder", {"position": {"name": "disentangled", "span": 4, "max_distance": 7}}),
    ("decoder", {"layer_pattern": [{"attention": WINDOW["attention"]}, {}], "position": {"name": "t5"}}),
    ("decoder", {"share_layers": True, "d_embedding": 6, "embedding_norm": True}),
]
"""Combined parts of models: windows, experts and statistics, layer patterns, shared layers."""

STATES = {"linear", "rnn", "lstm", "gru", "conv", "gated_conv"}
"""Parts that carry a state from token to token."""

DOCUMENTS = torch.arange(11).repeat(3, 1)
DOCUMENTS[0, 4:] = torch.tensor([0, 1, 2, 3, 4, 0, 1])
DOCUMENTS[2] = torch.tensor([3, 4, 0, 0, 1, 2, 3, 4, -1, -1, -1])
PADDED = ragged_positions(7, 3, 1)


class CustomAttention(nn.Module):
    state = None

    def __init__(self, shape, position):
        super().__init__()
        self.position = position

    def forward(self, x, *_):
        return x.mean(1, keepdim=True).expand_as(x)


class CustomBlock(CustomAttention):
    """The same as a block."""


def make_custom_block(config, shape, position, cross):
    return CustomBlock(shape, position)


def make_batch(kind):
    rng = torch.Generator().manual_seed(3)
    tokens, source = (torch.randint(5, VOCAB, pos.shape, generator=rng) for pos in (DOCUMENTS, PADDED))
    if kind == "encoder-decoder":
        labels = tokens.masked_fill(torch.arange(11) >= torch.tensor([[11], [2], [8]]), -100)
        return PairBatch(source, PADDED, tokens, labels, 21)
    without_label = (torch.rand(tokens.shape, generator=rng) < 0.3) | (DOCUMENTS < 0)
    return TokenWindows(tokens, DOCUMENTS, tokens.roll(-1, 1).masked_fill(without_label, -100), True)


def compute_loss(model, batch):
    if isinstance(batch, PairBatch):
        inputs = batch.source, batch.target, batch.source_pos, batch.target_pos
    else:
        inputs = batch.tokens, batch.pos
    logits = model.head(model.features(*inputs)).flatten(0, 1)
    return F.cross_entropy(logits, batch.labels.flatten(), reduction="sum", ignore_index=-100)


def make_model(config):
    model = build(config, seed=1).double().train()
    perturb(model, 0.1, shrink=config.norm.name == "none")
    for part in model.modules():
        if isinstance(part, MixtureOfExperts):
            part.calls_idle_experts = True
    return model


def train_steps(config, ranks=None):
    model, losses = make_model(config), []
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(2):
        if ranks is None:
            loss = compute_loss(model, make_batch(config.kind))
            loss.backward()
        else:
            context = ContextGather(model, dist.group.WORLD)
            with context.apply(), ranks.share_batch(model):
                batch = make_batch(config.kind)
                shard_rows = shard_pair_tokens if isinstance(batch, PairBatch) else shard_windows
                loss = compute_loss(model, shard_rows(batch, context.shard))
                loss.backward()
            sums = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
            dist.all_reduce(flat := torch.cat([x.flatten() for x in sums]))
            for x, total in zip(sums, flat.split([x.numel() for x in sums]), strict=True):
                x.copy_(total.view_as(x))
        losses.append(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
    return [torch.stack(losses), *(x.detach() for x in named_state(model).values())]


def make_config(kind, changes):
    changes = {k: v for k, v in changes.items() if kind == "encoder-decoder" or k not in PAIR_KEYS}
    return ModelConfig.model_validate({"vocab_size": VOCAB, "kind": kind, **SIZES, "dropout": 0.0, **changes})


def find_obstacle(case):
    return find_context_obstacle(make_config(*case), LanguageModelingTask)


def assert_same(world, cases):
    cases = list(cases)

    def compare(ranks):
        errors = []
        for i, config in enumerate(itertools.starmap(make_config, cases)):
            actual = train_steps(config, ranks)
            is_reference = ranks.rank == i % world
            expected = train_steps(config) if is_reference else [torch.empty_like(x) for x in actual]
            for x in expected:
                dist.broadcast(x, src=i % world)
            pairs = zip(actual, expected, strict=True)
            errors.append(max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs))
        return errors

    for case, *errors in zip(cases, *outputs_of(world, compare, timeout=100), strict=True):
        assert max(errors) <= 1e-10, case


def combine_parts():
    registries = {"attention": ATTENTION, "position": POSITION, "norm": NORM, "feed_forward": FEED_FORWARD}
    parts = {key: choices(registry) for key, registry in registries.items()}
    kernels = [part for part in parts["attention"] if part["name"] == "kernel"]
    parts["attention"] = [part for part in parts["attention"] if part["name"] not in ("kernel", *STATES)]
    for i in range(max(map(len, parts.values()))):
        changes = {key: part[i % len(part)] for key, part in parts.items()}
        yield KINDS[i % 3], changes | {"n_kv_heads": 4 if "tie" in changes["attention"] else 2}
    for kernel in kernels:  # has no scores to which position biases could be added
        yield "decoder", {"attention": kernel, "position": {"name": "rope"}, "n_kv_heads": 2}


def test_every_part_trains_as_in_one_process():
    assert_same(2, [*MODELS, *combine_parts()])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_every_design_trains_as_in_one_process(kind, part):
    cases = [(kind, changes) for changes in DESIGNS if not find_obstacle((kind, changes))]
    assert_same(2, cases[part::4])


@pytest.mark.slow
def test_four_ranks_train_as_one_process():
    """Rows of 11 tokens are 8 chunks of 2, of which two have only padding."""
    assert_same(4, MODELS[:2])


def test_only_recurrent_parts_are_refused(case):
    changes = CASES[case]
    for kind in KINDS[2:] if "encoder" in changes else KINDS:
        parts = [part for key, part in changes.items() if kind == KINDS[2] or key not in PAIR_KEYS]
        has_state = any(f'"{name}"' in json.dumps(parts) for name in STATES)
        assert (find_obstacle((kind, changes)) is not None) == has_state, kind


def test_obstacle_names_the_part():
    attention, block = (f"{__name__}:{name}" for name in ("CustomAttention", "make_custom_block"))
    for changes, obstacle in (
        ({"block": "gru", "position": "none"}, "block 'gru' passes a state along the row"),
        ({"attention": "linear"}, "attention 'linear' passes a state along the row"),
        ({"attention": attention}, "attention 'CustomAttention' does not gather keys and values"),
        ({"block": block}, f"block '{block}' does not gather keys and values"),
    ):
        assert find_obstacle(("decoder", {"position": "none"} | changes)) == obstacle
