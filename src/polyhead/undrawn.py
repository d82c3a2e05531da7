"""Models that are made without drawing their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

DRAWS = ("uniform_", "normal_", "kaiming_uniform_")


class Undrawn(TorchFunctionMode):
    """Within it parameters are made and not drawn: those of a model whose weights are all read, or that has no memory.

    Drawing takes most of the time of opening, and where there is no memory torch imports its compiler for it (a second).
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = args[0] if args else kwargs.get("tensor")
        if getattr(func, "__name__", "") in DRAWS and isinstance(given, nn.Parameter):
            return given
        return func(*args, **kwargs)
