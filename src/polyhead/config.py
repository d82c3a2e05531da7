"""What a model is made of: sizes, and parts by name. No torch until a config is made, and layers tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from polyhead.checked import Checked
from polyhead.dense import Dense
from polyhead.errors import UserError, bounded
from polyhead.presets import expanded
from polyhead.ranges import Factor
from polyhead.registry import ATTENTION, BLOCK, FEED_FORWARD, INIT, NORM, POOLING, POSITION, Choice, Registry

Kind = Literal["encoder-decoder", "decoder", "encoder"]
Tying = Literal["all", "target", "inputs", "none"]
HeadActivation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh", "none"]
WIDEST, DEEPEST = 2**20, 10_000  # beyond reason; larger ones would be built for hours before memory ends

PARTS: dict[str, Registry[Any]] = {
    "block": BLOCK,
    "decoder_block": BLOCK,
    "attention": ATTENTION,
    "decoder_attention": ATTENTION,
    "cross_attention": ATTENTION,
    "position": POSITION,
    "norm": NORM,
    "feed_forward": FEED_FORWARD,
    "init": INIT,
    "pooling": POOLING,
}


class Shape(NamedTuple):
    """The numbers that attention and position schemes are built from."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int  # of queries and keys
    v_head_dim: int  # of values
    max_len: int
    causal: bool  # whether a query sees itself and what is before it only

    @classmethod
    def of(
        cls,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        max_len: int = 1024,
        causal: bool = False,
    ) -> Shape:
        """The usual ones: all heads with keys of their own, d_model split among them."""
        head_dim = d_model // n_heads if head_dim is None else head_dim
        v_head_dim = head_dim if v_head_dim is None else v_head_dim
        return cls(d_model, n_heads, n_kv_heads or n_heads, head_dim, v_head_dim, max_len, causal)


def _known(choice: Choice | None, info: ValidationInfo) -> Choice | None:
    """The part that a field chooses, its options checked."""
    return None if choice is None else PARTS[str(info.field_name)].check(choice)


class LayerParts(Checked):
    """What a layer has in place of the block, attention and positions of the others."""

    block: Choice | None = None
    attention: Choice | None = None
    position: Choice | None = None

    _known = field_validator("*")(_known)


class ModelSection(Checked):
    """Sizes and parts of one Transformer, all but its vocabulary: the `model` section of a recipe.

    Defaults are the base model of Vaswani et al. (2017), table 3. ``preset`` (tiny, base, bert-base, gpt2, ...; ``polyhead sizes``)
    gives those of another model of the literature in their place; what is given beside it still counts.
    """

    shorthands: ClassVar[tuple[str, ...]] = ("preset",)
    kind: Kind = Field(
        "encoder-decoder", description="encoder-decoder, decoder (GPT-like) or encoder (BERT-like)"
    )
    d_model: int = Field(512, gt=0, le=WIDEST, description="width of the model")
    d_embedding: int | None = Field(
        None,
        gt=0,
        le=WIDEST,
        description="width of the embeddings of an encoder or a decoder, which a linear map takes to d_model; d_model, without a map, if not given",
    )
    n_layers: int = Field(6, gt=0, le=DEEPEST, description="blocks of the encoder")
    n_decoder_layers: int | None = Field(
        None, gt=0, le=DEEPEST, description="as many as n_layers if not given"
    )
    share_layers: bool = Field(
        False, description="all layers of a stack have the weights of the first, and are stored as one"
    )
    n_heads: int = Field(
        8, gt=0, le=WIDEST, description="attention heads; must divide d_model if head_dim is not given"
    )
    n_kv_heads: int | None = Field(
        None, gt=0, description="as many as n_heads if not given; 1 is multi-query"
    )
    head_dim: int | None = Field(
        None, gt=0, le=WIDEST, description="width of a head's queries and keys; d_model/n_heads if not given"
    )
    v_head_dim: int | None = Field(
        None, gt=0, le=WIDEST, description="width of a head's values; head_dim if not given"
    )
    d_ff: int | None = Field(None, gt=0, description="4 d_model if not given")
    max_len: int = Field(1024, gt=0, description="longest sequence in tokens; the size of learned positions")
    block: Choice = Choice("transformer")
    decoder_block: Choice | None = Field(None, description="block of the decoder; as block if not given")
    attention: Choice = Choice("softmax")
    decoder_attention: Choice | None = Field(
        None, description="self-attention of the decoder; as attention if not given"
    )
    cross_attention: Choice | None = Field(
        None, description="attention of the decoder to the source; as attention if not given"
    )
    position: Choice = Choice("sinusoidal")
    pattern: tuple[LayerParts, ...] = Field(
        (),
        description="block, attention and position of layers in turn: layer i has entry i, and again from the first",
    )
    norm: Choice = Choice("layernorm")
    norm_first: bool = Field(False, description="pre-norm x + F(N(x)) instead of post-norm N(x + F(x))")
    sandwich_norm: bool | Literal["after"] = Field(
        False,
        description="with norm_first: one more norm after each sub-layer, x + N'(F(N(x))); \"after\": that one alone, x + N'(F(x))",
    )
    feed_forward: Choice = Choice("relu")
    dropout: float = Field(0.1, ge=0, lt=1, description="probability, on embeddings and sub-layer outputs")
    tie_embeddings: Tying = Field(
        "all",
        description='"all" shares source, target and output embeddings, "target" target and output, "inputs" source and target',
    )
    scale_embedding: Factor = Field(True, description="multiply embeddings by √ of their width, or by it")
    embedding_norm: bool | Literal["first"] = Field(
        False,
        description='a norm on the embeddings; "first": in place of the first layer\'s own before attention',
    )
    segments: int = Field(0, ge=0, description="kinds of segments with an embedding each; BERT has 2")
    head: bool = Field(True, description="an encoder scores its vocabulary; without, it gives vectors alone")
    generator: int = Field(
        0, ge=0, le=DEEPEST, description="layers of what replaces tokens, for task replaced-tokens; 0: none"
    )
    head_activation: HeadActivation = Field(
        "gelu", description="activation of the map below an encoder's scores of the vocabulary; none: no map"
    )
    map_bias: bool | None = Field(
        None, description="biases in that map and in that of pooling; as in the feed-forwards if not given"
    )
    head_bias: bool = Field(False, description="a bias for each score of the vocabulary")
    scale_residual: float = Field(1.0, gt=0, description="factor on what a sub-layer adds")
    scale_output: Factor = Field(False, description="divide the head's input by √ of its width, or by it")
    logit_softcap: float | None = Field(
        None, gt=0, description="c tanh(scores / c) bounds those of the vocabulary"
    )
    pooling: Choice | None = Field(None, description="one vector for a text, for classes and embeddings")
    init: Choice = Choice("xavier")

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        return bounded(value)

    _known = field_validator(*PARTS)(_known)

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, given: Any) -> Any:
        return expanded(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Sizes that follow from others are filled in, so that a written config is complete."""
        if self.head_dim is None and self.d_model % self.n_heads:
            near = self.n_heads * max(1, round(self.d_model / self.n_heads))
            raise UserError(
                f"d_model ({self.d_model}) must be divisible by n_heads ({self.n_heads}); the nearest is {near}; "
                "or give head_dim"
            )
        head_dim = self.head_dim or self.d_model // self.n_heads
        derived = {
            "n_decoder_layers": self.n_layers,
            "n_kv_heads": self.n_heads,
            "head_dim": head_dim,
            "v_head_dim": head_dim,
            "d_ff": 4 * self.d_model,
        }
        for field, value in derived.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)
        if self.n_heads % self.kv_heads:
            divisors = ", ".join(str(n) for n in range(1, self.n_heads + 1) if self.n_heads % n == 0)
            raise UserError(
                f"n_kv_heads ({self.kv_heads}) must divide n_heads ({self.n_heads}): one of {divisors}"
            )
        if self.generator and "head" not in self.model_fields_set:
            object.__setattr__(self, "head", False)
        from polyhead.clashes import refuse_clashes
        from polyhead.trial import try_layers

        refuse_clashes(self)
        try_layers(self)
        return self

    def turn(self, layer: int) -> LayerParts:
        """What a layer has in place of what is common to all."""
        return self.pattern[layer % len(self.pattern)] if self.pattern else LayerParts()

    def at(self, layer: int) -> Self:
        """The config that a layer is built from: with the block and attention of its turn in the pattern."""
        parts = self.turn(layer)
        own = {"block": parts.block, "attention": parts.attention}
        return self.model_copy(update={name: choice for name, choice in own.items() if choice is not None})

    def block_of(self, cross: bool) -> Choice:
        """The block of a layer of the decoder of an encoder-decoder (cross), or of another stack."""
        return self.decoder_block if cross and self.decoder_block else self.block

    def layer(self, position: Any, causal: bool, cross: bool) -> Any:
        """A layer of a stack, from the config that ``at`` gives."""
        return BLOCK.build(self.block_of(cross), self, self.shape(causal), position, cross)

    def position_of(self, layer: int, common: Any, causal: bool) -> Any:
        """The position scheme of a layer: that of its turn in the pattern, else the common one."""
        choice = self.turn(layer).position
        return common if choice is None else POSITION.build(choice, self.shape(causal))

    def common_position(self, causal: bool) -> Any:
        """The position scheme of the embeddings, as wide as they are, or of the layers that have none of their own."""
        shape = self.shape(causal)
        found = POSITION.build(self.position, shape)
        if found.acts_on != "embeddings" or self.summed_width == self.d_model:
            return found
        return POSITION.build(self.position, shape._replace(d_model=self.summed_width))

    def shape(self, causal: bool) -> Shape:
        """What the attention and positions of the encoder (or, causal, the decoder) are built from."""
        assert self.head_dim is not None and self.v_head_dim is not None
        heads = self.n_heads, self.kv_heads, self.head_dim, self.v_head_dim
        return Shape(self.d_model, *heads, self.max_len, causal)

    @property
    def embedding_width(self) -> int:
        """Numbers of a token's embedding, and of what the head over the vocabulary reads."""
        return self.d_embedding or self.d_model

    @property
    def summed_width(self) -> int:
        """Numbers of what positions are added to: embeddings, which a decoder first takes to d_model."""
        return self.d_model if self.kind == "decoder" else self.embedding_width

    @property
    def decoder_layers(self) -> int:
        return self.n_decoder_layers or self.n_layers

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, resolved."""
        return self.n_kv_heads or self.n_heads

    def with_vocabulary(self, vocab_size: int, labels: Sequence[str] = ()) -> ModelConfig:
        """The complete configuration, once the tokenizer has said how many tokens there are, and the text which classes."""
        return ModelConfig(vocab_size=vocab_size, labels=tuple(labels), **self.model_dump())


class ModelConfig(ModelSection):
    """Sizes and parts of one Transformer with its vocabulary: everything needed to build it."""

    vocab_size: int = Field(gt=0, description="tokens of the tokenizer; rows of the embedding")
    labels: tuple[str, ...] = Field((), description="classes that an encoder tells apart, if it does")
    dense: tuple[Dense, ...] = Field((), description="maps of a text's vector, in turn")
    causal: bool = Field(False, description="of an encoder: a language model without its head")
    pairs: bool = Field(False, description="of an encoder: it has what it learned of pairs beside masks")

    @property
    def of_generator(self) -> ModelConfig:
        """That of the smaller model whose tokens this one tells from others."""
        changes = {"n_layers": self.generator, "generator": 0, "head": True, "pooling": None}
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _classes(self) -> Self:
        if self.labels and self.kind != "encoder":
            raise UserError(f"classes are told apart by an encoder; this is kind={self.kind!r}")
        if len(set(self.labels)) < len(self.labels):
            raise UserError("two of the labels are the same")
        return self
