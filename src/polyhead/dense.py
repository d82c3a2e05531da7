"""What a text's vector goes through once it is made. No torch here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from polyhead.checked import Checked


class Dense(Checked):
    """A linear map of the vector to another width, and an activation behind it."""

    width: int = Field(gt=0, le=2**20, description="numbers that it gives")
    activation: Literal["none", "tanh", "relu", "gelu"] = "none"
    bias: bool = True
