"""What a model is made of: sizes, and parts by name. No torch here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from polyhead.errors import UserError
from polyhead.registry import ATTENTION, FEED_FORWARD, INIT, NORM, POSITION, Choice

Kind = Literal["encoder-decoder"]
Tying = Literal["all", "target", "none"]


class ModelConfig(BaseModel):
    """Sizes and parts of one Transformer. Defaults are the base model of Vaswani et al. (2017), table 3.

    ``tie_embeddings``: "all" shares source, target and output embeddings, "target" shares target and output.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    kind: Kind = "encoder-decoder"
    vocab_size: int = Field(gt=0)
    d_model: int = Field(512, gt=0)
    n_layers: int = Field(6, gt=0)
    n_decoder_layers: int | None = Field(None, gt=0, description="as many as n_layers if not given")
    n_heads: int = Field(8, gt=0)
    n_kv_heads: int | None = Field(None, gt=0, description="as many as n_heads if not given; 1 is multi-query")
    d_ff: int | None = Field(None, gt=0, description="4 d_model if not given")
    max_len: int = Field(1024, gt=0, description="longest sequence in tokens; the size of learned positions")
    attention: Choice = Choice("softmax")
    position: Choice = Choice("sinusoidal")
    norm: Choice = Choice("layernorm")
    norm_first: bool = Field(False, description="pre-norm x + F(N(x)) instead of post-norm N(x + F(x))")
    feed_forward: Choice = Choice("relu")
    dropout: float = Field(0.1, ge=0, lt=1)
    tie_embeddings: Tying = "all"
    scale_embedding: bool = Field(True, description="multiply embeddings by sqrt(d_model)")
    init: Choice = Choice("xavier")

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, given: Any) -> Any:
        """Sizes that follow from others are filled in, so that a written config is complete."""
        if not isinstance(given, dict):
            return given
        base = {name: field.default for name, field in cls.model_fields.items()}
        value = {**base, **given}
        derived = {"n_decoder_layers": value["n_layers"], "n_kv_heads": value["n_heads"]}
        if isinstance(value["d_model"], int):
            derived["d_ff"] = 4 * value["d_model"]
        return {**given, **{k: v for k, v in derived.items() if given.get(k) is None}}

    @model_validator(mode="after")
    def _agree(self) -> ModelConfig:
        if self.d_model % self.n_heads:
            near = self.n_heads * max(1, round(self.d_model / self.n_heads))
            raise UserError(f"d_model ({self.d_model}) must be divisible by n_heads ({self.n_heads}); the nearest is {near}")
        if self.n_heads % self.kv_heads:
            divisors = [n for n in range(1, self.n_heads + 1) if self.n_heads % n == 0]
            raise UserError(f"n_kv_heads ({self.kv_heads}) must divide n_heads ({self.n_heads}): one of {divisors}")
        for field, registry in PARTS.items():
            object.__setattr__(self, field, registry.check(getattr(self, field)))
        return self

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        assert self.n_kv_heads is not None
        return self.n_kv_heads


PARTS = {"attention": ATTENTION, "position": POSITION, "norm": NORM, "feed_forward": FEED_FORWARD, "init": INIT}
