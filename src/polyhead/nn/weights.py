"""What training changes in a model."""

from __future__ import annotations

from torch import Tensor, nn


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and running statistics of a model by name, tied ones once; not what it can compute anew."""
    return dict(model.named_parameters()) | running(model)


def running(model: nn.Module) -> dict[str, Tensor]:
    """The running statistics of a model by name: they change as it reads, not as it learns."""
    kept = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}
