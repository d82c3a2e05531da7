"""What a model is made of: sizes, and parts by name. No torch here."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from polyhead.errors import UserError, unknown
from polyhead.presets import PRESETS
from polyhead.registry import ATTENTION, FEED_FORWARD, INIT, NORM, POSITION, Choice, Registry

Kind = Literal["encoder-decoder"]
Tying = Literal["all", "target", "none"]

PARTS: dict[str, Registry[Any]] = {
    "attention": ATTENTION,
    "position": POSITION,
    "norm": NORM,
    "feed_forward": FEED_FORWARD,
    "init": INIT,
}


class ModelSection(BaseModel):
    """Sizes and parts of one Transformer, all but its vocabulary: the `model` section of a recipe.

    Defaults are the base model of Vaswani et al. (2017), table 3. ``preset`` (tiny, base, big) gives the sizes of
    the literature in their place; what is given beside it still counts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    kind: Kind = Field("encoder-decoder", description="what the model is for")
    d_model: int = Field(512, gt=0, description="width of the model")
    n_layers: int = Field(6, gt=0, description="blocks of the encoder")
    n_decoder_layers: int | None = Field(None, gt=0, description="as many as n_layers if not given")
    n_heads: int = Field(8, gt=0, description="attention heads; must divide d_model")
    n_kv_heads: int | None = Field(
        None, gt=0, description="as many as n_heads if not given; 1 is multi-query"
    )
    d_ff: int | None = Field(None, gt=0, description="4 d_model if not given")
    max_len: int = Field(1024, gt=0, description="longest sequence in tokens; the size of learned positions")
    attention: Choice = Choice("softmax")
    position: Choice = Choice("sinusoidal")
    norm: Choice = Choice("layernorm")
    norm_first: bool = Field(False, description="pre-norm x + F(N(x)) instead of post-norm N(x + F(x))")
    feed_forward: Choice = Choice("relu")
    dropout: float = Field(0.1, ge=0, lt=1, description="probability, on embeddings and sub-layer outputs")
    tie_embeddings: Tying = Field(
        "all", description='"all" shares source, target and output embeddings, "target" target and output'
    )
    scale_embedding: bool = Field(True, description="multiply embeddings by sqrt(d_model)")
    init: Choice = Choice("xavier")

    @field_validator(*PARTS)
    @classmethod
    def _known(cls, choice: Choice, info: ValidationInfo) -> Choice:
        assert info.field_name is not None
        return PARTS[info.field_name].check(choice)

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, given: Any) -> Any:
        """A preset is a shorthand: its sizes stand in the config, its name does not."""
        if not isinstance(given, dict) or "preset" not in given:
            return given
        if given["preset"] not in PRESETS:
            raise unknown("preset", given["preset"], PRESETS)
        return PRESETS[given["preset"]] | {key: value for key, value in given.items() if key != "preset"}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Sizes that follow from others are filled in, so that a written config is complete."""
        derived = {"n_decoder_layers": self.n_layers, "n_kv_heads": self.n_heads, "d_ff": 4 * self.d_model}
        for field, value in derived.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)
        if self.d_model % self.n_heads:
            near = self.n_heads * max(1, round(self.d_model / self.n_heads))
            raise UserError(
                f"d_model ({self.d_model}) must be divisible by n_heads ({self.n_heads}); the nearest is {near}"
            )
        if self.n_heads % self.kv_heads:
            divisors = ", ".join(str(n) for n in range(1, self.n_heads + 1) if self.n_heads % n == 0)
            raise UserError(
                f"n_kv_heads ({self.kv_heads}) must divide n_heads ({self.n_heads}): one of {divisors}"
            )
        return self

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    @property
    def decoder_layers(self) -> int:
        assert self.n_decoder_layers is not None
        return self.n_decoder_layers

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, resolved."""
        assert self.n_kv_heads is not None
        return self.n_kv_heads

    def with_vocabulary(self, vocab_size: int) -> ModelConfig:
        """The complete configuration, once the tokenizer has said how many tokens there are."""
        return ModelConfig(vocab_size=vocab_size, **self.model_dump())


class ModelConfig(ModelSection):
    """Sizes and parts of one Transformer with its vocabulary: everything needed to build it."""

    vocab_size: int = Field(gt=0, description="tokens of the tokenizer; rows of the embedding")
