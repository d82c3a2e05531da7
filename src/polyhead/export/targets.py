"""Find a model's export formats and the obstacles to the others, without weights or other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from polyhead.config.model import HasProblemType, LayerOverride, ModelConfig, get_problem_type
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value
from polyhead.core.i18n import tr, translate_message
from polyhead.core.registry import TASK
from polyhead.cost.parameter_count import meta_model
from polyhead.export.gguf_archs import nearest_arch
from polyhead.export.gguf_vocabulary import check_pre_tokenizer
from polyhead.hf.save import config_dict, mismatched_ids, nearest_family, special_token_ids
from polyhead.models import CausalLM, Seq2Seq
from polyhead.run.recipe_tokenizer import make_tokenizer
from polyhead.tokenizers.tokenizer import Tokenizer

_SEQUENTIAL = "it processes tokens sequentially"
_UNSUPPORTED = {
    "rnn": _SEQUENTIAL,
    "lstm": _SEQUENTIAL,
    "gru": _SEQUENTIAL,
    "moe": "it routes tokens depending on their values, which a static graph cannot",
}


def onnx_unsupported(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield each part that a graph cannot express, with the reason."""
    layers = max(config.n_layers, config.decoder_layers)
    for layer in map(config.layer_config, range(min(layers, len(config.layer_pattern) or 1))):
        for field in ("block", "decoder_block", "feed_forward"):
            choice = getattr(layer, field)
            if choice is not None and choice.name in _UNSUPPORTED:
                yield f"{field} {choice.name!r}", _UNSUPPORTED[choice.name]
    if config.dense:
        yield "dense", "graphs output token embeddings, but its linear maps apply to a text embedding"
    if config.kind != "encoder":
        yield from _stateful_parts(config)


def _stateful_parts(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the parts of a decoder that have a state other than keys and values."""
    n_layers = min(config.decoder_layers, len(config.layer_pattern) or 1)
    model = meta_model(config.model_copy(update={"n_layers": n_layers, "n_decoder_layers": None}))
    assert isinstance(model, CausalLM | Seq2Seq)
    layers = [config.layer_config(i) for i in range(n_layers)]
    for layer, state in zip(layers, model.cache_shape.states, strict=True):
        if state:
            yield (
                _stateful_part(layer),
                "it has a recurrent state, but the ONNX decoder inputs are keys and values",
            )
    if isinstance(model, Seq2Seq) and any(
        (layer.cross_attention or layer.attention).name == "linear" for layer in layers
    ):
        yield (
            "cross_attention 'linear'",
            "it has sums as state, but the ONNX decoder inputs are keys and values",
        )


def _stateful_part(layer: ModelConfig) -> str:
    """Return the part of a decoder layer that has a state."""
    is_seq2seq = layer.kind == "encoder-decoder"
    block = layer.block_choice(is_seq2seq)
    if block.name not in ("transformer", "parallel"):
        return f"{'decoder_block' if is_seq2seq and layer.decoder_block else 'block'} {block.name!r}"
    attention = (layer.decoder_attention if is_seq2seq else None) or layer.attention
    return f"attention {attention.name!r}"


_BLOCKS = {
    "encoder-decoder": ("transformer",),
    "encoder": ("transformer",),
    "decoder": ("transformer", "parallel"),
}
_POSITIONS = {
    "encoder-decoder": ("sinusoidal", "learned", "none", "t5", "shaw", "rope"),
    "encoder": ("sinusoidal", "learned", "none", "t5", "shaw", "rope"),
    "decoder": ("sinusoidal", "learned", "none", "rope", "alibi", "shaw", "t5"),
}
_FEED_FORWARDS = ("relu", "gelu", "silu", "tanh", "sigmoid", "glu", "reglu", "geglu", "swiglu", "conv1x1")
_CONV_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh")  # of conv1x1
_SCALINGS = ("none", "linear", "ntk")
_NORMS = ("layernorm", "rmsnorm")


def ct2_unsupported(config: ModelConfig) -> list[str]:
    """Return one line for each unsupported part or option."""
    return [
        *_check_blocks(config),
        *_check_attention(config),
        *_check_positions(config),
        *_check_other(config),
    ]


def _check_blocks(config: ModelConfig) -> Iterator[str]:
    allowed = _BLOCKS[config.kind]
    for field in ("block", "decoder_block"):
        choice = getattr(config, field)
        if choice is not None and choice.name not in allowed:
            yield _format_mismatch(field, choice.name, allowed)
    if any(parts != LayerOverride() for parts in config.layer_pattern):
        yield "layer_pattern: all layers must be equal"


def _check_attention(config: ModelConfig) -> Iterator[str]:
    fields = [
        "attention",
        *(["decoder_attention", "cross_attention"] if config.kind == "encoder-decoder" else []),
    ]
    qk_norms = {}
    for field in fields:
        choice: Choice | None = getattr(config, field)
        if choice is None:
            continue
        if choice.name != "softmax":
            yield _format_mismatch(field, choice.name, ("softmax",))
            continue
        for option in ("window", "softcap"):
            if choice.options[option] is not None:
                yield f"{option} of {field} is {format_value(choice.options[option])}, expected null"
        if choice.options["projections"] == "none":
            yield f"projections of {field} is 'none', expected 'all'"
        qk_norms[field] = choice.options["qk_norm"]
    if any(qk_norms.values()) and config.kind == "encoder-decoder":
        yield (
            f"qk_norm is {format_value(next(filter(None, qk_norms.values())))}, expected false in an "
            "encoder-decoder"
        )
    elif "all_heads" in qk_norms.values():
        yield "qk_norm is 'all_heads', expected per head"
    elif value := {"layernorm", "per_head"} & set(qk_norms.values()):
        yield f"qk_norm is {format_value(*value)}, expected an RMS norm that all heads share"
    eps, qk_eps = config.norm.options.get("eps"), config.attention.options.get("qk_eps")
    if any(qk_norms.values()) and eps != qk_eps:
        yield f"eps of norm is {format_value(eps)}, expected {format_value(qk_eps)}, as qk_eps"
    if config.v_head_dim != config.head_dim:
        yield f"v_head_dim is {config.v_head_dim}, expected {config.head_dim}, as head_dim"


def _check_positions(config: ModelConfig) -> Iterator[str]:
    name, options, allowed = config.position.name, config.position.options, _POSITIONS[config.kind]
    if name not in allowed:
        yield _format_mismatch("position", name, allowed)
    if name == "rope" and options["scaling"] not in _SCALINGS:
        yield _format_mismatch("scaling of position 'rope'", options["scaling"], _SCALINGS)
    if name == "shaw" and config.kv_heads != config.n_heads:
        yield f"n_kv_heads is {config.kv_heads}, expected {config.n_heads} with position 'shaw'"


def _check_other(config: ModelConfig) -> Iterator[str]:
    if config.causal:
        yield "causal is true, expected false in an encoder"
    if config.n_segments and config.kind != "encoder":
        yield f"n_segments is {config.n_segments}, expected 0 in a decoder or an encoder-decoder"
    if config.encoder is not None:
        yield "encoder has sizes or parts of its own, expected those of the decoder"
    if config.head_transform:
        yield "head_transform is true, expected false"
    if config.residual.name != "add":
        yield _format_mismatch("residual", config.residual.name, ("add",))
    if config.residual_scale != 1:
        yield f"residual_scale is {config.residual_scale}, expected 1"
    if config.dense:
        yield f"dense is {len(config.dense)} linear maps of the text embedding, expected none"
    if config.d_embedding is not None:
        yield f"d_embedding is {config.d_embedding}, expected null"
    if config.norm.name not in _NORMS:
        yield _format_mismatch("norm", config.norm.name, _NORMS)
    if config.block.name == "parallel" and config.norm.name == "rmsnorm":
        yield "norm is 'rmsnorm', expected 'layernorm' with block 'parallel'"
    if config.feed_forward.name not in _FEED_FORWARDS:
        yield _format_mismatch("feed_forward", config.feed_forward.name, _FEED_FORWARDS)
    inner_activation = config.feed_forward.options.get("activation", "relu")
    if config.feed_forward.name == "conv1x1" and inner_activation not in _CONV_ACTIVATIONS:
        yield _format_mismatch("activation of feed_forward 'conv1x1'", inner_activation, _CONV_ACTIVATIONS)
    if (beta := config.feed_forward.options.get("beta", 1)) != 1:
        yield f"beta of feed_forward is {format_value(beta)}, expected 1"
    if config.embedding_norm == "first":
        yield "embedding_norm is 'first', expected true or false"
    if config.sandwich_norm and config.kind == "encoder-decoder":
        yield f"sandwich_norm is {format_value(config.sandwich_norm)}, expected false in an encoder-decoder"
    elif config.sandwich_norm == "after":
        yield "sandwich_norm is 'after', expected true or false"


def _format_mismatch(field: str, name: str, choices: tuple[str, ...]) -> str:
    return f"{field} is {name!r}, expected {' or '.join(map(repr, choices))}"


FORMAT_NAMES = {"hf": "Hugging Face", "ctranslate2": "CTranslate2", "onnx": "ONNX", "gguf": "GGUF"}
"""Display names of the formats of ``polyhead export --to``."""


def find_obstacles(
    config: ModelConfig, tokenizer: Tokenizer | None = None, origin: str | None = None
) -> dict[str, str]:
    """Return for each format the first unsupported part of the model or tokenizer, empty if it supports all.

    ``origin`` is the Hugging Face family that the weights came from, if any.
    """
    if config.generator_layers:  # the generator is not exported
        config = config.model_copy(update={"generator_layers": 0, "pooling": None, "lm_head": False})
    return {name: find(config, tokenizer, origin) for name, find in _FINDERS.items()}


def find_recipe_obstacles(recipe: Recipe) -> dict[str, str]:
    """Return the obstacles of a recipe's new model, before its data is read; a classifier is assumed to have
    two classes.
    """
    tokenizer = make_sample_tokenizer(recipe)
    task = TASK.get(recipe.task.name)
    labels = ("0", "1") if isinstance(task, HasProblemType) else ()
    sizes = tokenizer.target_tokenizer.vocab_size, tokenizer.source_size
    config = recipe.model.with_vocabulary(sizes[0], labels, get_problem_type(task), sizes[1])
    return find_obstacles(config, tokenizer)


def make_sample_tokenizer(recipe: Recipe) -> Tokenizer:
    """Return a small tokenizer with the segmentation and decoding of a recipe's tokenizer."""
    section = recipe.tokenizer.model_copy(update={"vocab_size": 300 + len(recipe.data.tags)})
    return make_tokenizer(recipe.model_copy(update={"tokenizer": section}), lambda: ["a b", "a b"])


def describe_targets(obstacles: dict[str, str]) -> str:
    """Return a line: ``exports: CTranslate2, ONNX; not Hugging Face: position is 'rope'; not GGUF: ...``."""
    supported = tr(", ").join(FORMAT_NAMES[name] for name, obstacle in obstacles.items() if not obstacle)
    return tr("; ").join(
        [
            tr("exports: {formats}", formats=supported or tr("none")),
            *(
                tr(
                    "not {format}: {obstacle}",
                    format=FORMAT_NAMES[name],
                    obstacle=translate_message(obstacle, "plan"),
                )
                for name, obstacle in obstacles.items()
                if obstacle
            ),
        ]
    )


def _hf_obstacle(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    family, obstacles = nearest_family(config, None, origin)
    if not obstacles and tokenizer is not None:
        obstacles = mismatched_ids(config_dict(config, family), special_token_ids(config, tokenizer))
    return _shorten_obstacle(obstacles)


def _gguf_obstacle(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    if config.kind != "decoder":
        return "language models only"
    obstacles = nearest_arch(config)[2]
    if not obstacles and tokenizer is not None:
        try:
            check_pre_tokenizer(tokenizer)
        except UserError:
            return "its tokenizer"
    return _shorten_obstacle(obstacles)


def _shorten_obstacle(obstacles: list[str]) -> str:
    """Return the first obstacle without the supported values: ``position is 'rope'``."""
    return obstacles[0].partition(", expected ")[0] if obstacles else ""


_FINDERS: dict[str, Callable[[ModelConfig, Tokenizer | None, str | None], str]] = {
    "hf": _hf_obstacle,
    "ctranslate2": lambda config, tokenizer, origin: _shorten_obstacle(ct2_unsupported(config)),
    "onnx": lambda config, tokenizer, origin: next((part for part, _ in onnx_unsupported(config)), ""),
    "gguf": _gguf_obstacle,
}
