"""Base class of recipe sections, and nested sections: initial weights, LoRA, distillation, parallelism.

No torch here.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from polyhead.core.base_settings import FrozenSettings
from polyhead.core.errors import check_finite


class ProjectionConfig(FrozenSettings):
    """A linear map of the vector to another width, followed by an activation."""

    width: int = Field(gt=0, le=2**20, description="width of the output")
    activation: Literal["none", "tanh", "relu", "gelu"] = "none"
    bias: bool = True


Files = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class ConfigSection(FrozenSettings):
    """A section of a recipe; its numbers must be finite."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _check_finite(cls, value: Any, info: ValidationInfo) -> Any:
        return value if info.field_name == "seed" else check_finite(value)


class InitFromConfig(ConfigSection):
    """Initial weights from a trained model: ``init_from: runs/mine``, or a mapping with ``run``.

    The tokenizer and the model config come from it; ``model`` keys of the recipe override the latter.
    """

    shorthand: ClassVar[str] = "run"  # the key set by a plain string in place of the section

    run: str = Field(description="path of a run or a published checkpoint, or owner/name on a hub")
    layer_stride: int = Field(
        1, gt=0, description="use the first layer and every n-th after it; 2 halves the depth"
    )


class LoraConfig(ConfigSection):
    """Low-rank adapters on frozen linear maps (Hu et al., 2021); merged into the weights at the end."""

    r: int = Field(
        8,
        gt=0,
        description="rank of the adapters (width between A and B); a lower rank learns less and costs less",
    )
    alpha: float = Field(16.0, gt=0, description="the output of the adapters is multiplied by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability on the input of the adapters")
    target_modules: tuple[str, ...] = Field(
        ("q_proj", "v_proj"),
        min_length=1,
        description="names of the linear layers that get an adapter, e.g. [attn, ffn]",
    )
    modules_to_save: tuple[str, ...] | None = Field(
        None,
        description="parts trained in full in addition to the adapters; default: those after a "
        "classifier's encoder",
    )
    base: Literal["fp32", "int4"] = Field(
        "fp32",
        description="number format of the frozen linear layers in training; int4: 4 bits (QLoRA), an eighth "
        "of the memory; the merged weights are fp32",
    )


class DistillConfig(ConfigSection):
    """Knowledge distillation in addition to the labels (Hinton et al., 2015; Sanh et al., 2019)."""

    teacher: Files = Field(
        min_length=1,
        description="path of one or several runs or published checkpoints, with the same tokenizer "
        "except for classification",
    )
    temperature: float = Field(
        2.0, gt=0, description="softmax temperature applied to the logits of teacher and student"
    )
    logits_weight: float = Field(1.0, ge=0, description="loss weight of the teacher's probabilities")
    labels_weight: float = Field(0.5, ge=0, description="loss weight of the labels")
    hidden_weight: float = Field(
        0.0, ge=0, description="loss weight of the cosine between the last hidden states of both models"
    )


class ParallelConfig(ConfigSection):
    """How a training is split over processes: the sizes of the dimensions of a mesh of processes.

    Their product is the number of processes. The default is data parallelism: each process has the whole
    model and a part of every batch.
    """

    replicate: int | None = Field(
        None,
        gt=0,
        description="number of groups of processes with a copy of the model each, which share the rows of a "
        "batch; default: the number of processes divided by the other sizes",
    )
    shard: int = Field(
        1,
        gt=0,
        description="fully sharded data parallelism (FSDP): number of processes over which parameters, "
        "gradients and optimizer state are sharded; they share the rows of a batch",
    )
    context: int = Field(
        1, gt=0, description="context parallelism: number of processes over which each sequence is split"
    )
    tensor: int = Field(
        1,
        gt=0,
        description="tensor parallelism: number of processes over which heads, hidden units and the "
        "vocabulary are split",
    )
    pipeline: int = Field(
        1, gt=0, description="pipeline parallelism: number of stages that the layers are split into"
    )
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"] = Field(
        "1f1b", description="order of the micro-batches in a pipeline"
    )
    micro_batches: int | None = Field(
        None,
        gt=0,
        description="number of micro-batches per update in a pipeline; default: four per process of it",
    )
    reduce_dtype: Literal["fp32", "bf16"] = Field(
        "fp32", description="number format in which sharded gradients are summed; bf16 sends half the bytes"
    )
    checkpoint: Literal["whole", "sharded"] = Field(
        "whole",
        description="whole: checkpoints as one process writes them; sharded: each process writes its part",
    )


def _parse_init_from(value: Any) -> Any:
    return {InitFromConfig.shorthand: value} if isinstance(value, str) else value


InitFrom = Annotated[InitFromConfig, BeforeValidator(_parse_init_from)]
