"""What every section of a recipe is, and those that begin with what was trained before. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from polyhead.checked import Checked
from polyhead.errors import bounded

Files = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class Section(Checked):
    """A part of a recipe, whose numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: Any, info: ValidationInfo) -> Any:
        return value if info.field_name == "seed" else bounded(value)


class StartSection(Section):
    """Trained weights to begin with: ``start: runs/mine`` or ``start: {run: runs/mine, every: 2}``.

    The tokenizer and the model come with them; what the recipe says of the model is changed.
    """

    shorthand: ClassVar[str] = "run"  # the key that is meant where the section is one word

    run: str = Field(description="a run, a published checkpoint, or owner/name on a hub")
    every: int = Field(
        1, gt=0, description="of its layers the first and every n-th after; 2 halves the depth"
    )


class AdaptSection(Section):
    """Low-rank adapters beside maps that stay as they are (Hu et al., 2021); in the end they are added to the weights."""

    rank: int = Field(
        8,
        gt=0,
        description="rank of the adapters, the width between A and B; lower learns less and costs less",
    )
    alpha: float = Field(16.0, gt=0, description="alpha / rank is the factor on what adapters add")
    dropout: float = Field(0.0, ge=0, lt=1, description="probability, on what adapters read")
    parts: tuple[str, ...] = Field(
        ("q_proj", "v_proj"), min_length=1, description="linear maps that get one, by name, e.g. [attn, ffn]"
    )
    learn: tuple[str, ...] | None = Field(
        None, description="parts that learn whole besides; those above a classifier's encoder if not given"
    )


class DistillSection(Section):
    """Learning from a teacher besides the labels (Hinton et al., 2015; Sanh et al., 2019)."""

    teacher: Files = Field(
        min_length=1,
        description="a run or a published checkpoint, or several; with the same tokenizer, but for classification",
    )
    temperature: float = Field(2.0, gt=0, description="both distributions are softened by it")
    logits: float = Field(1.0, ge=0, description="weight of the teacher's probabilities")
    labels: float = Field(0.5, ge=0, description="weight of the labels")
    hidden: float = Field(0.0, ge=0, description="weight of the cosine between both models' last vectors")


def _start(given: Any) -> Any:
    return {StartSection.shorthand: given} if isinstance(given, str) else given


Start = Annotated[StartSection, BeforeValidator(_start)]
