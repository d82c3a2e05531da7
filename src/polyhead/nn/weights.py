"""What training changes in a model."""

from __future__ import annotations

from torch import Tensor, nn


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and running statistics of a model by name, tied ones once; not what it can compute anew."""
    kept = model.state_dict().keys()
    return dict(model.named_parameters()) | {n: b for n, b in model.named_buffers() if n in kept}
