"""Convert an optimizer's state dict to tensors and JSON, and back without loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from polyhead.core.errors import UserError


def flatten_optimizer(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
    """``optimizer.state_dict()`` -> (tensors by path, JSON layout that places them).

    Scalars and lists represent themselves; ``{"dict": [[key, value], ...]}``, ``{"tuple": [...]}`` and
    ``{"tensor": name}`` represent what JSON lacks (above all, integer keys).
    """
    tensors: dict[str, Tensor] = {}

    def pack_value(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            name = "/".join(path)
            assert name not in tensors, f"two tensors are named {name!r}"
            tensors[name] = value
            return {"tensor": name}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, Mapping):
            assert all(type(key) in (int, str) for key in value), (
                f"a key at {'/'.join(path)!r} is neither int nor str"
            )
            return {"dict": [[key, pack_value(item, (*path, str(key)))] for key, item in value.items()]}
        if type(value) in (list, tuple):
            items = [pack_value(item, (*path, str(i))) for i, item in enumerate(value)]
            return items if type(value) is list else {"tuple": items}
        raise UserError(f"cannot save {'/'.join(path)!r} of the optimizer: a {type(value).__name__}; "
                        "tensors, numbers, strings, None, lists, tuples and dicts can be saved")  # fmt: skip

    layout = pack_value(state, ())
    return tensors, layout


def unflatten_optimizer(tensors: Mapping[str, Tensor], layout: Any) -> Any:
    """The inverse of ``flatten_optimizer``: a state dict for ``optimizer.load_state_dict``."""
    if isinstance(layout, list):
        return [unflatten_optimizer(tensors, item) for item in layout]
    if not isinstance(layout, dict):
        return layout
    match layout:
        case {"tensor": str(name)} if name in tensors:
            return tensors[name]
        case {"tensor": name}:
            raise UserError(f"the optimizer's tensor {name!r} is missing")
        case {"tuple": list(items)}:
            return tuple(unflatten_optimizer(tensors, item) for item in items)
        case {"dict": list(items)} if all(isinstance(item, list) and len(item) == 2 for item in items):
            return {key: unflatten_optimizer(tensors, item) for key, item in items}
    raise UserError(f"the optimizer's layout has {sorted(layout)}; expected 'tensor', 'tuple' or 'dict'")
