"""Modules of a model that become instances of subclasses with the same state."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def replace_modules(model: nn.Module, classes: Mapping[nn.Module, type[nn.Module]]) -> None:
    """Put an instance of a subclass of its class in place of each module inside a model; not of the model.

    Both share one dictionary of attributes, so that a reference to the module sees the same weights and
    buffers; its calls are those of the old class.
    """
    replacements: dict[nn.Module | None, nn.Module] = {}
    for module, subclass in classes.items():
        replacements[module] = subclass.__new__(subclass)
        object.__setattr__(replacements[module], "__dict__", module.__dict__)
    for parent in list(model.modules()):
        children = parent._modules
        children.update({name: replacements.get(child, child) for name, child in children.items()})
