"""Build a model without initialising its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

_INIT_FUNCTIONS = ("uniform_", "normal_", "kaiming_uniform_")


class SkipInit(TorchFunctionMode):
    """Context manager in which parameters are created but not initialised.

    For models that are loaded or on the meta device: random initialisation takes most of the time of loading,
    and on the meta device torch imports its compiler for it (a second).
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensor = args[0] if args else kwargs.get("tensor")
        if getattr(func, "__name__", "") in _INIT_FUNCTIONS and isinstance(tensor, nn.Parameter):
            return tensor
        return func(*args, **kwargs)
