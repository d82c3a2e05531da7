"""Definition of a family of Hugging Face checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import Registry
from polyhead.hf import config_map
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.config_map import ConfigField, ConfigReader, ModelFields
from polyhead.tokenizers.tokenizer import Tokenizer


class TensorTransform(NamedTuple):
    """Conversion of our tensors to one Hugging Face tensor and back."""

    join: Callable[[Sequence[Tensor]], Tensor]
    split: Callable[[Tensor, list[int]], Sequence[Tensor]]  # with the number of rows of each of our tensors


IDENTITY = TensorTransform(lambda params: params[0], lambda tensor, rows: [tensor])
# separate memory: tensors that share memory under two names are written once
COPY = TensorTransform(lambda params: params[0].clone(), IDENTITY.split)
STACK = TensorTransform(lambda params: torch.stack(list(params)), lambda tensor, rows: tensor.unbind())
TRANSPOSE = TensorTransform(lambda params: params[0].T, lambda tensor, rows: [tensor.T])
CONCAT = TensorTransform(lambda params: torch.cat(list(params)), lambda tensor, rows: tensor.split(rows))
CONCAT_TRANSPOSE = TensorTransform(
    lambda params: torch.cat(list(params)).T, lambda tensor, rows: tensor.T.split(rows)
)


def per_head_qkv(config: ModelConfig) -> TensorTransform:
    """Interleave q, k and v per key/value head: queries of the first group, its key and value, then the next;
    (n_kv_heads x ..., ...).
    """

    def join(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([x.unflatten(0, (config.kv_heads, -1)) for x in tensors], 1).flatten(0, 1)

    def split(tensor: Tensor, rows: list[int]) -> Sequence[Tensor]:
        parts = tensor.unflatten(0, (config.kv_heads, -1)).split([n // config.kv_heads for n in rows], 1)
        return [x.flatten(0, 1) for x in parts]

    return TensorTransform(join, split)


def per_expert(config: ModelConfig) -> TensorTransform:
    """Stack all experts in one tensor: (n_experts, ..., ...)."""
    count = config.feed_forward.options.get("n_experts", 1)
    return TensorTransform(
        lambda params: torch.cat(list(params)).unflatten(0, (count, -1)),
        lambda tensor, rows: tensor.flatten(0, 1).split(rows),
    )


def halves_swapped(config: ModelConfig) -> TensorTransform:
    """Swap the two halves of each head's features, which reverses the direction of rope."""
    half = config.attention_shape(causal=True).head_dim // 2

    def swap(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 2, half)).flip(1).flatten(0, 2)

    return TensorTransform(lambda params: swap(params[0]), lambda tensor, rows: [swap(tensor)])


AnyTransform = TensorTransform | Callable[[ModelConfig], TensorTransform]


class WeightRule(NamedTuple):
    """A Hugging Face name and our names of the parameters that it holds.

    ``{n}`` in both is the number of a layer, ``{e}`` that of an expert, ``{q}`` that of a query head and
    ``{k}`` that of a key/value head. With ``{e}`` in our names alone the tensor holds the parameters of the
    first expert, then those of the second, and so on; likewise for heads.
    """

    hf_name: str
    param_names: tuple[str, ...]
    transform: AnyTransform = IDENTITY
    condition: Callable[[ModelConfig], bool] = lambda config: True  # which models have it


class BoundRule(NamedTuple):
    """A row for one layer of one model."""

    hf_name: str
    param_names: tuple[str, ...]
    transform: TensorTransform


def weight(
    hf_name: str,
    *param_names: str,
    transform: AnyTransform = IDENTITY,
    condition: Callable[[ModelConfig], bool] = lambda config: True,
) -> list[WeightRule]:
    """Return the row of one tensor."""
    return [WeightRule(hf_name, param_names, transform, condition)]


def linear(
    hf_name: str, *param_names: str, weight: AnyTransform = IDENTITY, bias: AnyTransform = IDENTITY
) -> list[WeightRule]:
    """Return the rows of a weight and its bias."""
    steps = {"weight": weight, "bias": bias}
    return [
        WeightRule(f"{hf_name}.{kind}", tuple(f"{name}.{kind}" for name in param_names), step)
        for kind, step in steps.items()
    ]


def bind_rules(
    table: Iterable[WeightRule], state: Mapping[str, Tensor], config: ModelConfig
) -> Iterator[BoundRule]:
    """Yield the rows for a model with these weights, layer by layer. Rows of absent parameters, such as
    biases or a head, are skipped.
    """
    for row in filter(lambda row: row.condition(config), table):
        step = row.transform if isinstance(row.transform, TensorTransform) else row.transform(config)
        for hf_name, *names in _expand_names((row.hf_name, *row.param_names), config):
            if all(name in state for name in names):
                yield BoundRule(hf_name, tuple(names), step)


def _expand_names(names: tuple[str, ...], config: ModelConfig) -> Iterator[list[str]]:
    """Yield the names with each layer number for {n}, and each expert or head number for its placeholder."""
    layers = range(max(config.n_layers, config.decoder_layers)) if "{n}" in names[0] else (0,)
    experts = config.feed_forward.options.get("n_experts", 0)
    counts = {"{e}": experts, "{q}": config.n_heads, "{k}": config.kv_heads}
    hf_name, *param_names = names
    placeholder = next((placeholder for placeholder in counts if placeholder in "".join(names)), "{e}")
    numbers = range(counts[placeholder])
    if placeholder not in hf_name and placeholder in "".join(param_names):
        names = (hf_name, *(name.replace(placeholder, str(e)) for e in numbers for name in param_names))
    for n, e in itertools.product(layers, numbers if placeholder in hf_name else (0,)):
        yield [name.replace("{n}", str(n)).replace(placeholder, str(e)) for name in names]


def to_hf(table: Iterable[WeightRule], state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Convert our weights to those of a checkpoint."""
    rules = list(bind_rules(table, state, config))
    assert {name for row in rules for name in row.param_names} == state.keys(), (
        "the weight map of the family is incomplete"
    )
    return {row.hf_name: row.transform.join([state[name] for name in row.param_names]) for row in rules}


def from_hf(rule: BoundRule, tensor: Tensor, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Split a Hugging Face tensor into our parameters, by our names."""
    return zip(
        rule.param_names,
        rule.transform.split(tensor, [len(state[name]) for name in rule.param_names]),
        strict=True,
    )


# builds the tokenizer with these special tokens by role
TokenizerFactory = Callable[[Mapping[str, str]], Tokenizer]


class ModelFamily(NamedTuple):
    """Checkpoints of one ``model_type``: a table of config keys and one of weight names, both used in both
    directions.

    ``write`` need not check whether the family can express a config: ``save.hf_unsupported`` reads the result
    again and reports each part that differs.
    """

    architectures: Mapping[str, str]  # our models -> classes of transformers
    config_map: tuple[ConfigField, ...]  # rows of config.json
    weight_map: tuple[WeightRule, ...]  # rows of the weights
    prefix: str  # of all names but the head's; files of the bare model lack it
    buffer_pattern: str = "$^"  # regular expression of buffers in old files, which are ignored
    tied_weights: Mapping[
        str, str
    ] = {}  # name -> the tensor it shares, which some files hold under both names
    model_rules: Mapping[str, tuple[WeightRule, ...]] = {}  # additional rows of one model
    legacy_suffixes: Mapping[str, str] = {}  # suffix of names in old files -> suffix today
    special_tokens: Mapping[str, str] = {}  # role -> token, if no tokenizer file states it
    # its tokenizer from files other than tokenizer.json
    load_legacy_tokenizer: Callable[[CheckpointFiles], TokenizerFactory] | None = None
    # tensors in the files that are computed, not learned
    generate_tensors: Callable[[ModelConfig], Mapping[str, Tensor]] = lambda config: {}
    ignored_pattern: str = "$^"  # names of weights that our models lack; they are dropped with a warning
    legacy_prefix: str = ""  # prefix of names in old files in place of ``prefix``

    def read(self, reader: ConfigReader) -> ModelFields:
        """Convert config.json to fields of ModelConfig."""
        return config_map.read_fields(self.config_map, reader)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Convert fields of ModelConfig to config.json."""
        return config_map.write_fields(self.config_map, config)

    def rules_for(self, model: str) -> tuple[WeightRule, ...]:
        """Return the weight table of one of our models. The bare encoder of a language model has no head."""
        if model == "SentenceEncoder" and "CausalLM" in self.architectures:
            encoder_rules = [row for row in self.weight_map if row.param_names[0].split(".")[0] != "head"]
            return tuple(
                row._replace(param_names=tuple(f"encoder.{name}" for name in row.param_names))
                for row in encoder_rules
            )
        if model == "QuestionAnswerer":  # a token classifier, whose head has another name
            return tuple(
                rule._replace(hf_name=rule.hf_name.replace("classifier.", "qa_outputs."))
                if rule.param_names[0].startswith("classifier.")
                else rule
                for rule in self.rules_for("TokenClassifier")
            )
        return self.weight_map + self.model_rules.get(model, ())


FAMILY: Registry[Any] = Registry("model_type", "polyhead.hf.families")

TOKEN_EMBEDDING, HEAD_WEIGHT = "embedding.token.weight", "head.weight"
STACK_LAYER = "stack.layers.{n}"
QKV_PROJ = (f"{STACK_LAYER}.attn.q_proj", f"{STACK_LAYER}.attn.k_proj", f"{STACK_LAYER}.attn.v_proj")
FINAL_NORM = "stack.final_norm"


def decoder_rules(
    block: str,
    *,
    embedding: str,
    norms: tuple[str, ...],
    qkv: str,
    output: str,
    feed_forward: tuple[str, str],
    final_norm: str,
    head: str = "lm_head",
    transform: AnyTransform = IDENTITY,
    qkv_weight: AnyTransform = IDENTITY,
    qkv_bias: AnyTransform = IDENTITY,
) -> tuple[WeightRule, ...]:
    """Return the rows of a decoder with a feed-forward without a gate, by the names of its tensors.

    ``block`` is the prefix of a layer. ``qkv`` names three tensors, with q, k and v for ``{x}``, or one that
    holds all, by ``qkv_weight`` and ``qkv_bias``. ``transform`` is that of the other matrices.
    """
    if "{x}" in qkv:
        attention = [
            row
            for x, ours in zip("qkv", QKV_PROJ, strict=True)
            for row in linear(f"{block}.{qkv.replace('{x}', x)}", ours)
        ]
    else:
        attention = linear(f"{block}.{qkv}", *QKV_PROJ, weight=qkv_weight, bias=qkv_bias)
    layer_norms = [
        row
        for name, residual in zip(norms, ("attn", "ffn"), strict=False)
        for row in linear(f"{block}.{name}", f"{STACK_LAYER}.{residual}_residual.norm")
    ]
    return (
        *weight(f"{embedding}.weight", TOKEN_EMBEDDING),
        *layer_norms[:2],
        *attention,
        *linear(f"{block}.{output}", f"{STACK_LAYER}.attn.o_proj", weight=transform),
        *layer_norms[2:],
        *linear(f"{block}.{feed_forward[0]}", f"{STACK_LAYER}.ffn.up_proj", weight=transform),
        *linear(f"{block}.{feed_forward[1]}", f"{STACK_LAYER}.ffn.down_proj", weight=transform),
        *linear(final_norm, FINAL_NORM),
        *weight(f"{head}.weight", HEAD_WEIGHT),
    )


def register_decoder(
    name: str,
    hf_class: str,
    keys: tuple[ConfigField, ...],
    table: tuple[WeightRule, ...],
    embedding: str,
    *,
    head: str = "lm_head",
    buffers: str = "$^",
    load_legacy_tokenizer: Callable[[CheckpointFiles], TokenizerFactory] | None = None,
) -> ModelFamily:
    """Register a family of decoders, whose head may be tied to the ``embedding``."""
    family = ModelFamily(
        {"CausalLM": hf_class},
        keys,
        table,
        prefix=f"{embedding.split('.')[0]}.",
        buffer_pattern=buffers,
        tied_weights={f"{head}.weight": f"{embedding}.weight"},
        load_legacy_tokenizer=load_legacy_tokenizer,
    )
    FAMILY.register(name)(family)
    return family


# Hugging Face name -> activation; of several names for one choice the first is written
HF_ACTIVATIONS = {
    "gelu_new": Choice("gelu", tanh=True),
    "gelu_pytorch_tanh": Choice("gelu", tanh=True),
    "gelu_fast": Choice("gelu", tanh=True),
    "gelu": Choice("gelu", tanh=False),
    "relu": Choice("relu"),
    "silu": Choice("silu"),
    "swish": Choice("silu"),
    "tanh": Choice("tanh"),
    "sigmoid": Choice("sigmoid"),
}
HF_GATED_ACTIVATIONS = {
    "silu": Choice("swiglu"),
    "swish": Choice("swiglu"),
    "gelu_pytorch_tanh": Choice("geglu", tanh=True),
    "gelu_new": Choice("geglu", tanh=True),
    "gelu": Choice("geglu", tanh=False),
    "relu": Choice("reglu"),
    "sigmoid": Choice("glu"),
}


def activation_name(choice: Choice, names: dict[str, Choice]) -> str:
    """Return the Hugging Face name of a feed-forward's activation, else of a similar one, else the first
    name.
    """
    same = [name for name, other in names.items() if choice.name == other.name]
    exact = [name for name in same if choice.options.get("tanh") == names[name].options.get("tanh")]
    return (exact or same or list(names))[0]


def map_activation(key: str, default: str, names: dict[str, Choice] = HF_ACTIVATIONS) -> ConfigField:
    """Map the feed-forward by the Hugging Face name of its activation."""
    return ConfigField(
        lambda reader, fields: {"feed_forward": names[reader.get_choice(key, default, names)].to_config()},
        lambda config: {key: activation_name(config.feed_forward, names)},
    )


def head_transform_name(feed_forward: Choice) -> str:
    """Return the activation of the head's transform in families that use the one of the layers."""
    return "gelu_tanh" if feed_forward.options.get("tanh") else feed_forward.name
