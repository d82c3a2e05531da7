"""Functions replaced by a faster form in a context, and modules by ones of subclasses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import nn

Function = TypeVar("Function", bound=Callable[..., Any])
CallHandler = Callable[[Callable[..., Any], Any, Any], Any]
"""Called with an overridable function, its arguments and its keyword arguments; returns its result."""


class _Active(threading.local):
    handler: CallHandler | None = None


_active = _Active()


def overridable(function: Function) -> Function:
    """The function, whose calls the active handler of this thread receives; compiled graphs have none.

    ``__wrapped__`` is the function itself.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _active.handler is None:
            return function(*args, **kwargs)
        return _active.handler(call, args, kwargs)

    return cast(Function, call)


def active_handler() -> CallHandler | None:
    """What receives the calls of overridable functions in this thread now."""
    return _active.handler


@contextmanager
def replace_calls(handler: CallHandler | None) -> Iterator[None]:
    """Context in which ``handler``, if any, receives the calls of overridable functions in this thread."""
    previous, _active.handler = _active.handler, handler
    try:
        yield
    finally:
        _active.handler = previous


def replace_modules(model: nn.Module, classes: Mapping[nn.Module, type[nn.Module]]) -> None:
    """Put an instance of a subclass of its class in place of each module inside a model; not of the model.

    Both share one dictionary of attributes, so that a reference to the module sees the same weights and
    buffers; its calls are those of the old class.
    """
    replacements: dict[nn.Module, nn.Module] = {}
    for module, subclass in classes.items():
        replacements[module] = subclass.__new__(subclass)
        object.__setattr__(replacements[module], "__dict__", module.__dict__)
    replace_children(model, replacements)


def replace_children(model: nn.Module, replacements: Mapping[Any, nn.Module]) -> None:
    """Put another module in place of each module inside a model, wherever it is; not of the model."""
    for parent in list(model.modules()):
        children = parent._modules
        children.update({name: replacements.get(child, child) for name, child in children.items()})
