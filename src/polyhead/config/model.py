"""Model config: sizes, and parts by name. It is data: ``check_model`` checks that its layers can be built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self, runtime_checkable

from pydantic import Field, ValidationInfo, field_validator, model_validator

from polyhead.config.config_constraints import check_constraints
from polyhead.config.config_sections import ProjectionConfig
from polyhead.config.presets import expand_preset
from polyhead.core.base_settings import FrozenSettings
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, check_finite
from polyhead.core.option_types import Factor
from polyhead.core.registry import (
    ATTENTION,
    BLOCK,
    FEED_FORWARD,
    INIT,
    NORM,
    POOLING,
    POSITION,
    RESIDUAL,
    Registry,
)

ModelKind = Literal["encoder-decoder", "decoder", "encoder"]
Tying = Literal["all", "target", "inputs", "none"]
HeadActivation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh", "none"]
MAX_PATTERN = 1024  # entries of layer_pattern, for each of which a layer is built to check it
MAX_WIDTH, MAX_DEPTH = (
    2**20,
    10_000,
)  # upper limits; larger models would build for hours before memory runs out

PART_REGISTRIES: dict[str, Registry[Any]] = {
    "block": BLOCK,
    "decoder_block": BLOCK,
    "attention": ATTENTION,
    "decoder_attention": ATTENTION,
    "cross_attention": ATTENTION,
    "position": POSITION,
    "norm": NORM,
    "residual": RESIDUAL,
    "feed_forward": FEED_FORWARD,
    "init": INIT,
    "pooling": POOLING,
}


class AttentionShape(NamedTuple):
    """The sizes that attention and position schemes are built from."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int  # of queries and keys
    v_head_dim: int  # of values
    max_len: int
    causal: bool  # whether a query sees only itself and earlier positions
    kv_width: int | None = None  # of the input of keys and values; None: d_model

    @classmethod
    def from_sizes(
        cls,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        max_len: int = 1024,
        causal: bool = False,
    ) -> AttentionShape:
        """A shape with defaults: as many key/value heads as query heads, d_model split among the heads."""
        head_dim = d_model // n_heads if head_dim is None else head_dim
        v_head_dim = head_dim if v_head_dim is None else v_head_dim
        return cls(d_model, n_heads, n_kv_heads or n_heads, head_dim, v_head_dim, max_len, causal)


def _check_part(choice: Choice | None, info: ValidationInfo) -> Choice | None:
    """Validate the part that a field chooses and its options."""
    return None if choice is None else PART_REGISTRIES[str(info.field_name)].check(choice)


class LayerOverride(FrozenSettings):
    """A layer's own block, attention and position, in place of the common ones."""

    block: Choice | None = None
    attention: Choice | None = None
    position: Choice | None = None

    _check_part = field_validator("*")(_check_part)


class EncoderOverride(FrozenSettings):
    """Sizes and parts of an encoder where they differ from those of its decoder.

    d_ff, n_kv_heads and the widths of heads follow from its own d_model and n_heads; all else is common.
    """

    d_model: int | None = Field(
        None, gt=0, le=MAX_WIDTH, description="width of the encoder; default: as the decoder"
    )
    n_heads: int | None = Field(
        None, gt=0, le=MAX_WIDTH, description="number of its heads; default: as the decoder"
    )
    n_kv_heads: int | None = Field(None, gt=0, description="its key/value heads; default: its n_heads")
    head_dim: int | None = Field(
        None, gt=0, le=MAX_WIDTH, description="width of its queries and keys; default: its d_model/n_heads"
    )
    v_head_dim: int | None = Field(
        None, gt=0, le=MAX_WIDTH, description="width of its values; default: its head_dim"
    )
    d_ff: int | None = Field(None, gt=0, description="its inner width; default: 4 times its d_model")
    vocab_size: int | None = Field(
        None, gt=0, description="its own vocabulary: number of rows of its embedding; default: as the decoder"
    )
    norm: Choice | None = Field(None, description="its norm; default: as the decoder")
    norm_first: bool | None = Field(None, description="pre-norm in it; default: as the decoder")
    feed_forward: Choice | None = Field(None, description="its feed-forward; default: as the decoder")
    embedding_norm: bool | None = Field(None, description="norm on its embeddings; default: as the decoder")
    n_segments: int | None = Field(
        None, ge=0, description="number of its segment types; default: as the decoder"
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="its dropout probability; default: as the decoder"
    )
    projection: bool = Field(
        False, description="whether a linear map takes the output of the encoder to d_model of the decoder"
    )

    _check_part = field_validator("norm", "feed_forward")(_check_part)


def _derive_sizes(sizes: Any, n_heads: int) -> dict[str, int]:
    """The sizes of a stack that follow from others, resolved; a UserError if they do not fit together."""
    if sizes.head_dim is None and sizes.d_model % n_heads:
        nearest = n_heads * max(1, round(sizes.d_model / n_heads))
        raise UserError(
            f"d_model ({sizes.d_model}) must be divisible by n_heads ({n_heads}); the nearest is "
            f"{nearest}; or give head_dim"
        )
    head_dim = sizes.head_dim or sizes.d_model // n_heads
    n_kv_heads = sizes.n_kv_heads or n_heads
    if n_heads % n_kv_heads:
        divisors = ", ".join(str(n) for n in range(1, n_heads + 1) if n_heads % n == 0)
        raise UserError(f"n_kv_heads ({n_kv_heads}) must divide n_heads ({n_heads}): one of {divisors}")
    return {
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "v_head_dim": sizes.v_head_dim or head_dim,
        "d_ff": sizes.d_ff or 4 * sizes.d_model,
    }


SINGLE_LABEL: Final = "single_label_classification"
TOKEN_LABELS: Final = "token_classification"
QUESTION_ANSWERING: Final = "question_answering"
PER_TOKEN = TOKEN_LABELS, QUESTION_ANSWERING
ANSWER_LABELS = "start", "end"
ProblemType = Literal[
    "single_label_classification",
    "multi_label_classification",
    "regression",
    "token_classification",
    "question_answering",
]
"""What a classifier outputs for a text, by the names of transformers; those of PER_TOKEN: for each token."""


@runtime_checkable
class HasProblemType(Protocol):
    """A task of a classifier, or its factory."""

    problem_type: ProblemType


def get_problem_type(task: object) -> ProblemType:
    """What the model of a task outputs for a text, if it is a classifier."""
    return task.problem_type if isinstance(task, HasProblemType) else SINGLE_LABEL


class ModelSpec(FrozenSettings):
    """Sizes and parts of one Transformer without its vocabulary: the `model` section of a recipe.

    Defaults are the base model of Vaswani et al. (2017), table 3. ``preset`` (tiny, base, bert-base, gpt2,
    ...; ``polyhead params``) replaces them by those of another published model; other keys override the
    preset.
    """

    shorthands: ClassVar[tuple[str, ...]] = ("preset",)
    kind: ModelKind = Field(
        "encoder-decoder", description="encoder-decoder, decoder (GPT-like) or encoder (BERT-like)"
    )
    d_model: int = Field(512, gt=0, le=MAX_WIDTH, description="width of the model")
    d_embedding: int | None = Field(
        None,
        gt=0,
        le=MAX_WIDTH,
        description="embedding width of an encoder or a decoder, projected linearly to d_model; "
        "default: d_model, without a projection",
    )
    n_layers: int = Field(6, gt=0, le=MAX_DEPTH, description="number of encoder blocks")
    n_decoder_layers: int | None = Field(
        None, gt=0, le=MAX_DEPTH, description="number of decoder blocks; default: n_layers"
    )
    share_layers: bool = Field(
        False, description="all layers of a stack share the weights of the first, which are stored once"
    )
    n_heads: int = Field(
        8,
        gt=0,
        le=MAX_WIDTH,
        description="number of attention heads; must divide d_model unless head_dim is set",
    )
    n_kv_heads: int | None = Field(
        None, gt=0, description="number of key/value heads; default: n_heads; 1 is multi-query"
    )
    head_dim: int | None = Field(
        None,
        gt=0,
        le=MAX_WIDTH,
        description="width of the queries and keys of a head; default: d_model/n_heads",
    )
    v_head_dim: int | None = Field(
        None, gt=0, le=MAX_WIDTH, description="width of the values of a head; default: head_dim"
    )
    d_ff: int | None = Field(
        None, gt=0, description="inner width of the feed-forward layers; default: 4 d_model"
    )
    max_len: int = Field(
        1024, gt=0, description="maximum sequence length in tokens; number of learned positions"
    )
    block: Choice = Choice("transformer")
    decoder_block: Choice | None = Field(None, description="block of the decoder; default: as block")
    attention: Choice = Choice("softmax")
    decoder_attention: Choice | None = Field(
        None, description="self-attention of the decoder; default: as attention"
    )
    cross_attention: Choice | None = Field(
        None, description="attention of the decoder to the source; default: as attention"
    )
    position: Choice = Choice("sinusoidal")
    layer_pattern: tuple[LayerOverride, ...] = Field(
        (),
        max_length=MAX_PATTERN,
        description="block, attention and position per layer: layer i has entry i; the list repeats",
    )
    encoder: EncoderOverride | None = Field(
        None, description="sizes and parts of the encoder that are not those of the decoder"
    )
    norm: Choice = Choice("layernorm")
    norm_first: bool = Field(False, description="pre-norm x + F(N(x)) instead of post-norm N(x + F(x))")
    sandwich_norm: bool | Literal["after"] = Field(
        False,
        description='with norm_first: additional norm after each sub-layer, x + N\'(F(N(x))); "after": '
        "only that one, x + N'(F(x))",
    )
    residual: Choice = Choice("add")
    feed_forward: Choice = Choice("relu")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="dropout probability on embeddings and sub-layer outputs"
    )
    tie_embeddings: Tying = Field(
        "all",
        description='"all" shares source, target and output embeddings, "target" target and output, '
        '"inputs" source and target',
    )
    scale_embedding: Factor = Field(
        True, description="multiply embeddings by √ of their width, or by this number"
    )
    embedding_norm: bool | Literal["first"] = Field(
        False,
        description='norm on the embeddings; "first": instead of the norm before attention in the first '
        "layer",
    )
    n_segments: int = Field(
        0, ge=0, description="number of segment types (token type embeddings); BERT has 2"
    )
    lm_head: bool = Field(
        True,
        description="encoder: whether there is a language modelling head over the vocabulary; without "
        "it, only vectors",
    )
    generator_layers: int = Field(
        0,
        ge=0,
        le=MAX_DEPTH,
        description="number of generator layers, for task replaced-token-detection; 0: no generator",
    )
    head_transform: bool = Field(
        False, description="encoder-decoder: the transform of an encoder's head before the vocabulary logits"
    )
    head_transform_activation: HeadActivation = Field(
        "gelu",
        description="activation of the linear transform before an encoder's vocabulary logits; none: no "
        "transform",
    )
    head_transform_bias: bool | None = Field(
        None,
        description="biases in the head transform and in the pooling projection; default: as in the "
        "feed-forward layers",
    )
    lm_head_bias: bool = Field(False, description="bias of the vocabulary logits")
    residual_scale: float = Field(
        1.0, gt=0, description="factor on the output of each sub-layer, before the residual sum"
    )
    logits_scale: Factor = Field(
        False, description="divide the input of the head by √ of its width (T5), or by this number"
    )
    logit_softcap: float | None = Field(
        None, gt=0, description="c: bound vocabulary logits as c tanh(logits / c)"
    )
    pooling: Choice | None = Field(
        None, description="pooling of a text into one vector, for classification and embeddings"
    )
    init: Choice = Choice("xavier")

    @field_validator("*")
    @classmethod
    def _check_finite(cls, value: Any) -> Any:
        return check_finite(value)

    _check_part = field_validator(*PART_REGISTRIES)(_check_part)

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, value: Any) -> Any:
        return expand_preset(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _resolve_sizes(self) -> Self:
        """Fill in the sizes that follow from others, so that a saved config is complete."""
        derived = _derive_sizes(self, self.n_heads) | {"n_decoder_layers": self.decoder_layers}
        for field, value in derived.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)
        if self.encoder is not None:
            given = self.encoder.model_copy(update={"d_model": self.encoder.d_model or self.d_model})
            sizes = _derive_sizes(given, given.n_heads or self.n_heads)
            object.__setattr__(self, "encoder", given.model_copy(update=sizes))
            check_constraints(self.encoder_spec)
        if self.generator_layers and "lm_head" not in self.model_fields_set:
            object.__setattr__(self, "lm_head", False)
        check_constraints(self)
        return self

    def layer_override(self, layer: int) -> LayerOverride:
        """The override of a layer from ``layer_pattern``; empty if there is none."""
        return self.layer_pattern[layer % len(self.layer_pattern)] if self.layer_pattern else LayerOverride()

    def layer_config(self, layer: int) -> Self:
        """The config that a layer is built from, with the block and attention of its pattern entry."""
        parts = self.layer_override(layer)
        overrides = {"block": parts.block, "attention": parts.attention}
        return self.model_copy(
            update={name: choice for name, choice in overrides.items() if choice is not None}
        )

    def block_choice(self, cross: bool) -> Choice:
        """The block of a decoder layer of an encoder-decoder (``cross``), or of any other stack."""
        return self.decoder_block if cross and self.decoder_block else self.block

    def attention_shape(self, causal: bool) -> AttentionShape:
        """The shape for attention and positions of the encoder or, with ``causal``, the decoder."""
        assert self.head_dim is not None and self.v_head_dim is not None
        heads = self.n_heads, self.kv_heads, self.head_dim, self.v_head_dim
        return AttentionShape(self.d_model, *heads, self.max_len, causal)

    @property
    def encoder_spec(self) -> Self:
        """The config that the encoder is built from."""
        if self.encoder is None:
            return self
        changes = {name: value for name, value in self.encoder if value is not None and name != "projection"}
        return self.model_copy(update=changes | {"encoder": None})

    @property
    def source_width(self) -> int:
        """Width of the source as the decoder reads it."""
        is_projected = self.encoder is not None and self.encoder.projection
        return self.d_model if is_projected else self.encoder_spec.d_model

    @property
    def has_head_transform(self) -> bool:
        """Whether the LM head has a transform before the vocabulary logits."""
        return (self.kind == "encoder" or self.head_transform) and self.head_transform_activation != "none"

    @property
    def embedding_width(self) -> int:
        """Width of the token embeddings and of the input of the LM head."""
        return self.d_embedding or self.d_model

    @property
    def position_width(self) -> int:
        """Width that positions are added to: the embedding width; d_model in a decoder.

        A decoder projects its embeddings to d_model before it adds positions.
        """
        return self.d_model if self.kind == "decoder" else self.embedding_width

    @property
    def decoder_layers(self) -> int:
        return self.n_decoder_layers or self.n_layers

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads, resolved."""
        return self.n_kv_heads or self.n_heads

    def with_vocabulary(
        self,
        vocab_size: int,
        labels: Sequence[str] = (),
        problem_type: ProblemType = SINGLE_LABEL,
        source_size: int = 0,
    ) -> ModelConfig:
        """The complete config, with the vocabulary size of the tokenizer and the labels of the data.

        ``source_size`` is that of sources, if they have a vocabulary of their own.
        """
        fields = self.model_dump() | {"vocab_size": vocab_size, "labels": tuple(labels)}
        if source_size:
            encoder = fields["encoder"] or {}
            rows = max(source_size, encoder.get("vocab_size") or 0)
            fields["encoder"] = encoder | {"vocab_size": rows}
        return ModelConfig(problem_type=problem_type, **fields)


class ModelConfig(ModelSpec):
    """Sizes and parts of one Transformer with its vocabulary: everything needed to build it.

    Unknown keys, parts and options and impossible sizes are refused here; parts that do not fit together are
    refused by ``build``.
    """

    vocab_size: int = Field(
        gt=0, description="number of tokens of the tokenizer and of rows of the embedding"
    )
    labels: tuple[str, ...] = Field((), description="labels of a classifier")
    problem_type: ProblemType = Field(
        SINGLE_LABEL,
        description="what a classifier outputs: one label, any number of labels, numbers, or labels of "
        "tokens",
    )
    dense: tuple[ProjectionConfig, ...] = Field(
        (), description="dense maps applied to the pooled vector, in order"
    )
    causal: bool = Field(
        False, description="encoder: causal attention, that is a language model without its head"
    )
    nsp_head: bool = Field(
        False,
        description="encoder: has the next sentence prediction head of its pretraining, in addition to "
        "the masked language model",
    )

    @property
    def generator_config(self) -> ModelConfig:
        """The config of the generator, the smaller model whose tokens this one detects."""
        changes = {"n_layers": self.generator_layers, "generator_layers": 0, "lm_head": True, "pooling": None}
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.labels and self.kind != "encoder":
            raise UserError(f"classification requires an encoder; this is kind={self.kind!r}")
        if len(set(self.labels)) < len(self.labels):
            raise UserError("two labels are equal")
        return self
