import pytest
import torch
from torch import nn

from polyhead import Choice, ModelConfig, build, load
from polyhead.cache.factory import make_cache
from polyhead.config.config_sections import LoraConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE, OPTIMIZER
from polyhead.cost import flops
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.parameter_count import count_model_parameters, group_parameters
from polyhead.cost.workload import BatchShape
from polyhead.introspect.compute_attention import compute_pair_attention, compute_self_attention
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.nn.lora import merge_lora
from polyhead.nn.state import named_state
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.init_from import LAYER_NAME
from polyhead.train.trainable_parameters import add_lora, freeze

KINDS = ("encoder", "decoder", "encoder-decoder")
SIZES = {"vocab_size": 50, "d_model": 32, "n_heads": 2, "n_kv_heads": 1, "n_layers": 4, "n_decoder_layers": 3}
SIZES |= {"d_ff": 40, "max_len": 32, "dropout": 0.0}
DESIGNS = [
    {},
    {"position": "rope", "norm": "rmsnorm", "norm_first": True, "feed_forward": "swiglu"},
    {"position": "t5", "attention": {"name": "softmax", "window": 3}},
    {"attention": "linear"},
    {"block": "gru", "position": "none"},
    {"layer_pattern": [{"position": "alibi"}]},
]
SOURCE = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
TOKENS = torch.arange(16).reshape(2, 8)


def make_pair(kind, **changes):
    sharing, copies = (
        build(ModelConfig(**{**SIZES, "kind": kind, **changes, "share_layers": share}), seed=2).eval()
        for share in (True, False)
    )
    with torch.no_grad():
        for p in sharing.parameters():
            p.add_(0.2 * torch.randn_like(p))
        state = named_state(sharing)
        for name, tensor in named_state(copies).items():
            tensor.copy_(state[first_layer_name(name)])
    return sharing, copies


def first_layer_name(name):
    return LAYER_NAME.sub(r"\g<1>0\3", name)


def forward(model):
    return model(SOURCE, TOKENS) if getattr(model, "encode", None) else model(TOKENS)


def decode(model, choice=None):
    memory = model.encode(SOURCE) if getattr(model, "encode", None) else None
    cache, steps = make_cache(choice, model.cache_shape, 2, 8), []
    for t in range(8):
        pos = torch.full((2, 1), t)
        cache.prepare_step(range(2), pos)
        steps.append(model.decode(TOKENS[:, t : t + 1], pos, cache, memory))
    return torch.cat(steps, 1)


@pytest.mark.parametrize("changes", DESIGNS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_shared_layers_equal_copies(kind, changes):
    sharing, copies = make_pair(kind, **changes)
    torch.testing.assert_close(forward(sharing), forward(copies))
    one = build(ModelConfig(**{**SIZES, "kind": kind, **changes, "n_layers": 1, "n_decoder_layers": 1}))
    shapes, expected = ({name: x.shape for name, x in named_state(m).items()} for m in (sharing, one))
    assert shapes == expected
    n_parameters = sum(p.numel() for p in sharing.parameters())
    assert count_model_parameters(sharing.config) == count_model_parameters(one.config) == n_parameters
    assert {part.times for part in group_parameters(sharing.config) if "layer" in part.name} == {1}
    shape = BatchShape(2, 8, 9 if kind == "encoder-decoder" else 0)
    assert flops.count_forward(sharing.config, shape) == flops.count_forward(copies.config, shape)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_the_sum_over_layers(kind):
    sharing, copies = make_pair(kind)
    for model in (sharing, copies):
        forward(model).square().mean().backward()
    expected = {}
    for name, p in copies.named_parameters():
        first = first_layer_name(name)
        expected[first] = expected.get(first, torch.zeros_like(p)) + p.grad
    for name, p in sharing.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-6)
    shape = BatchShape(2, 8, 9 if kind == "encoder-decoder" else 0)
    memory = estimate_training_memory(sharing.config, shape, Choice("adamw"))
    assert memory.gradients == sum(p.nbytes for p in sharing.parameters())


@pytest.mark.parametrize("changes", DESIGNS[:3], ids=str)
@pytest.mark.parametrize("name", [name for name in CACHE.names() if name not in ("state", "low_rank")])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@torch.inference_mode()
def test_each_layer_has_its_own_cache(kind, name, changes):
    if name == "subgen" and changes.get("position") == "t5":
        changes = DESIGNS[1]  # it supports no position biases
    sharing, copies = (decode(model, Choice(name)) for model in make_pair(kind, **changes))
    torch.testing.assert_close(sharing, copies, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("changes", DESIGNS[:3], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_packed_model_equals_that_of_copies(kind, changes, dtype):
    sharing, copies = (pack_model(model, linear_factory(dtype)) for model in make_pair(kind, **changes))
    expected = forward(copies)
    torch.testing.assert_close(forward(sharing), expected, rtol=1e-4, atol=1e-5)
    if kind != "encoder":
        atol = 1e-4 if dtype == "fp32" else 1e-1
        torch.testing.assert_close(decode(sharing), expected, rtol=1e-3, atol=atol)


def test_attention_weights_are_those_of_copies():
    maps = [[compute_pair_attention(m, SOURCE[:1], TOKENS[:1]) for m in make_pair("encoder-decoder")]]
    maps += [[{k: compute_self_attention(m, TOKENS[:1])} for m in make_pair(k)] for k in KINDS[:2]]
    for sharing, copies in maps:
        assert sharing.keys() == copies.keys() and len(copies) in (1, 3)
        for kind, layers in copies.items():
            assert sharing[kind].layer_numbers == layers.layer_numbers
            assert layers.layer_numbers == [*range(1, 1 + len(layers.weights))]
            torch.testing.assert_close(sharing[kind].weights, layers.weights)


def test_adapters_and_optimizers_have_shared_weights_once():
    sharing, _ = make_pair("decoder")
    for name in OPTIMIZER.names():
        optimizers = OPTIMIZER.build(OPTIMIZER.check(Choice(name)), sharing, 1e-3)
        ids = [id(p) for one in optimizers for group in one.param_groups for p in group["params"]]
        assert sorted(ids) == sorted(id(p) for p in sharing.parameters()), name
    expected = forward(sharing)
    add_lora(sharing, LoraConfig(r=2, target_modules=("q_proj",)), seed=1)
    trainable = [name for name, p in sharing.named_parameters() if p.requires_grad]
    assert trainable == [f"stack.layers.0.attn.q_proj.lora_{x}" for x in "ab"]
    nn.init.normal_(sharing.get_parameter(trainable[1]))
    output = forward(sharing)
    assert not torch.allclose(output, expected, atol=1e-3)
    merge_lora(sharing)
    torch.testing.assert_close(forward(sharing), output, rtol=1e-4, atol=1e-5)
    sharing, _ = make_pair("decoder")
    freeze(sharing, ["stack.layers.0"])
    assert all(p.requires_grad == (".layers." not in name) for name, p in sharing.named_parameters())
    with pytest.raises(UserError, match=r"named 'stack.layers.1'; did you mean 'stack.layers.0'"):
        freeze(sharing, ["stack.layers.1"])
    with pytest.raises(UserError, match=r"no linear layer .* named 'layers.1'; did you mean 'layers'"):
        add_lora(sharing, LoraConfig(r=2, target_modules=("layers.1",)), seed=1)
    add_lora(sharing, LoraConfig(r=2, target_modules=("layers.0",)), seed=1)


def test_saved_run_has_the_weights_once(tmp_path):
    tokenizer = train_tokenizer(["a dog barks"] * 9, Choice("bpe"), 300)
    sizes = SIZES | {"kind": "decoder", "vocab_size": tokenizer.vocab_size, "share_layers": True}
    model = build(ModelConfig(**sizes), seed=1).eval()
    Run(model, tokenizer, GenerationConfig()).save(tmp_path)
    copy = load(tmp_path).model.eval()
    assert len(set(copy.stack.layers)) == 1 and len(copy.stack.layers) == 4
    torch.testing.assert_close(forward(copy), forward(model))
