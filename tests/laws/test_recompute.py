import itertools
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from tests.laws.conftest import HYBRIDS, choices, ragged_positions
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from polyhead import Choice, ModelConfig, build
from polyhead.config.recipe import Recipe
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, NORM, POSITION, TASK
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.kernels.training.mode import training_kernels
from polyhead.nn.stack import recompute_blocks
from polyhead.nn.state import named_state
from polyhead.train.loop import derive_seed, train_step
from polyhead.train.run_training import _load_or_train_tokenizer, _open_task
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState
from polyhead.train.update import record_step

KINDS = ("decoder", "encoder", "encoder-decoder")
VOCAB, ROWS, LENGTH, SOURCE = 19, 3, 7, 5
SIZES = {"vocab_size": VOCAB, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "max_len": 16}
LIGHT_BLOCKS = ("rnn", "conv", "gated_conv")
"""Blocks whose input is more than 15 % of what they save."""


def block_changes(block):
    return {"block": block, "norm_first": True, "position": {"name": "none"}}


def take_turns(key, parts):
    turns = zip(parts, itertools.cycle(choices(NORM)), itertools.cycle(choices(FEED_FORWARD)), strict=False)
    return [{key: part, "norm": norm, "feed_forward": ffn} for part, norm, ffn in turns]


PARTS = [
    *map(block_changes, choices(BLOCK)),
    *(case | {"position": {"name": "none"}} for case in take_turns("attention", choices(ATTENTION))),
    *take_turns("position", choices(POSITION)),
    {"feed_forward": {"name": "moe", "dropout": 0.2}, "norm": {"name": "batchnorm"}},
    {"attention": {"name": "softmax", "dropout": 0.2}, "norm": {"name": "rmsnorm"}},
    {"share_layers": True, "norm": {"name": "batchnorm"}},
    {"share_layers": True, "cross_attention": {"name": "softmax", "tie": "qk"}, "n_kv_heads": 4},
    {"n_decoder_layers": 1, "sandwich_norm": True, "norm_first": True},
    {"layer_pattern": HYBRIDS[1], "n_layers": 4, "position": {"name": "none"}},
]


CONTEXTS = {"onednn": training_kernels}
CONTEXTS |= {name: partial(torch.autocast, "cpu", getattr(torch, name)) for name in ("bfloat16", "float16")}


class LiveStorages(TorchDispatchMode):
    def __init__(self, excluded):
        super().__init__()
        self.excluded, self.storages = excluded, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_iter(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in self.excluded:
                storage = x.untyped_storage()
                self.storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    @property
    def total(self):
        return sum(nbytes for storage, nbytes in self.storages.values() if not storage.expired())


def storages_of(tensors):
    return {x.untyped_storage()._cdata for x in tensors}


def measure_saved_bytes(config, recompute):
    """Bytes that autograd saves up to the features, each storage once, without those of the model."""
    model = build(config, seed=1).train()
    recompute_blocks(model, recompute)
    excluded, saved = storages_of((*model.parameters(), *model.buffers())), {}

    def save(x):
        if x.untyped_storage()._cdata not in excluded:
            saved[x.untyped_storage()._cdata] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
        model.features(*make_inputs(config.kind, padded=False))
    return sum(x.untyped_storage().nbytes() for x in saved.values())


def make_inputs(kind, padded):
    rng = torch.Generator().manual_seed(3)
    lengths = (SOURCE, LENGTH) if kind == "encoder-decoder" else (LENGTH,)
    tokens = tuple(torch.randint(5, VOCAB, (ROWS, length), generator=rng) for length in lengths)
    return (*tokens, *(ragged_positions(length, 2, 4) for length in lengths)) if padded else tokens


def compute_results(config, recompute, forward_context=nullcontext):
    model = build(config, seed=1).train()
    recompute_blocks(model, recompute)
    torch.manual_seed(5)
    with forward_context():
        features = model.features(*make_inputs(config.kind, padded=True))
    features.float().sin().sum().backward()
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    state = {"features": features.detach(), "rng": torch.get_rng_state()}
    return state | gradients | dict(model.named_buffers())


def assert_bitwise_equal(actual, expected):
    assert actual.keys() == expected.keys()
    assert [name for name, tensor in actual.items() if not torch.equal(tensor, expected[name])] == []


def make_config(kind, changes, **sizes):
    return ModelConfig.model_validate({**SIZES, "kind": kind, "dropout": 0.2, **sizes, **changes})


CASES = [("encoder-decoder", changes) for changes in PARTS] + [("decoder", {"d_embedding": 6})]
CASES += itertools.product(("decoder", "encoder"), map(block_changes, choices(BLOCK)))


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=str)
def test_features_and_gradients_are_bitwise_equal(kind, changes):
    config = make_config(kind, changes)
    assert_bitwise_equal(*(compute_results(config, recompute) for recompute in (True, False)))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_recomputation_uses_the_precision_of_the_forward_pass(kind, context, monkeypatch):
    monkeypatch.setattr("polyhead.kernels.onednn_matmul._MIN_MULTIPLICATIONS", 1)
    monkeypatch.setattr("polyhead.kernels.training.mode.mkl_without_avx512", lambda: True)
    config = make_config(kind, {"feed_forward": {"name": "moe"}, "position": {"name": "t5"}})
    plain, recomputed = (compute_results(config, enabled, CONTEXTS[context]) for enabled in (False, True))
    assert_bitwise_equal(recomputed, plain)
    assert not torch.equal(plain["features"], compute_results(config, False)["features"])


MEMORY_CASES = [("encoder-decoder", name, {}) for name in BLOCK.names()]
MEMORY_CASES += [(kind, "transformer", {"position": {"name": "t5"}}) for kind in ("decoder", "encoder")]
MEMORY_CASES.append(("encoder-decoder", "transformer", {"share_layers": True, "norm": {"name": "batchnorm"}}))


@pytest.mark.parametrize(("kind", "block", "changes"), MEMORY_CASES, ids=str)
def test_memory_estimate_equals_saved_bytes(kind, block, changes):
    config = make_config(kind, block_changes({"name": block}) | changes)
    batch_shape = BatchShape(ROWS, LENGTH, SOURCE if kind == "encoder-decoder" else 0)
    memory = estimate_training_memory(config, batch_shape, Choice("adamw"), recompute=True)
    assert memory.activations == measure_saved_bytes(config, True)
    assert (memory.block_activations is None) == (block == "lstm")  # oneDNN's workspace is unknown


@pytest.mark.parametrize("block", BLOCK.names())
@pytest.mark.parametrize("kind", KINDS)
def test_saved_bytes_are_at_most_15_percent(kind, block):
    config = make_config(kind, block_changes({"name": block}), n_layers=12)
    recomputed, plain = (measure_saved_bytes(config, recompute) for recompute in (True, False))
    one = measure_saved_bytes(make_config(kind, block_changes({"name": block}), n_layers=1), True)
    length = LENGTH + SOURCE if kind == "encoder-decoder" else LENGTH
    assert recomputed - one == 11 * ROWS * length * config.d_model * 4  # the inputs of the other blocks
    assert block in LIGHT_BLOCKS or recomputed <= 0.15 * plain


@pytest.mark.parametrize("position", ["alibi", "rope", "t5"])
def test_live_storages_are_the_saved_tensors(position):
    """The graph holds neither position tables nor keys and values of the source otherwise."""
    config = make_config("encoder-decoder", {"position": {"name": position}}, n_layers=4)
    model, inputs = build(config, seed=1).train(), make_inputs(config.kind, padded=False)
    recompute_blocks(model)
    with LiveStorages(storages_of((*model.parameters(), *model.buffers(), *inputs))) as live:
        features = model.features(*inputs)
    saved = measure_saved_bytes(config, True) - sum(x.nbytes for x in inputs)
    assert saved <= live.total <= saved + 2 * features.nbytes  # the features, and a table of positions


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("recompute")
    write_texts(directory)
    return directory


@pytest.mark.parametrize("task", TASK.names())
def test_training_of_every_task_is_bitwise_equal(task, corpus_dir):
    assert_bitwise_equal(*(train(corpus_dir, task, recompute) for recompute in ("blocks", "none")))


def train(directory, task_name, recompute):
    options = {"recompute": recompute, "accumulate": 2, "precision": "fp16"}
    recipe = task_recipe(directory, task_name, directory / "run", **options)
    parts = {"norm": {"name": "batchnorm"}, "feed_forward": {"name": "moe", "n_experts": 3, "dropout": 0.1}}
    tree = recipe.model_dump(mode="json")
    recipe = Recipe.model_validate(tree | {"model": tree["model"] | parts})
    notes, factory = Notes(), TASK.get(task_name)
    tokenizer = _load_or_train_tokenizer(recipe, factory, False, notes, None)
    task, config = _open_task(recipe, tokenizer, 0, [], notes)
    training = TrainState(build(config, seed=1), recipe.train, config.d_model, steps=2)
    strategy = parallelize(training, task, recipe.train)
    assert training.loss_scale is not None
    training.loss_scale.value = 64.0  # no task's gradients overflow
    batches = [task.collate(rows) for rows in task.epoch_batches(0)[:2]]
    for step in (1, 2):
        training.progress.step = step
        torch.manual_seed(derive_seed(1, step))
        assert record_step(training.progress, train_step(strategy, batches).read()) == ""
    return {name: tensor.clone() for name, tensor in named_state(training.model.train()).items()}
