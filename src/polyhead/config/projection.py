"""Config of the dense maps applied to a pooled text embedding. No torch here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from polyhead.core.base_settings import FrozenSettings


class ProjectionConfig(FrozenSettings):
    """A linear map of the vector to another width, followed by an activation."""

    width: int = Field(gt=0, le=2**20, description="width of the output")
    activation: Literal["none", "tanh", "relu", "gelu"] = "none"
    bias: bool = True
