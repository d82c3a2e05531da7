"""Memoize tensors that depend only on positions, so that they are computed once a step, not once a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

ResultT = TypeVar("ResultT")


class MemoizeLast:
    """Memoizes the last two calls, which the layers of a step repeat: one for queries and one for keys.

    Tensors are equal if they are the same memory, which is kept alive and so cannot be reused, at the same
    version, which changes on in-place writes. Results carry no gradient: learned parameters must be looked up
    outside.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[list[_TensorKey], Any]] = []

    def __call__(self, make: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return make(*args), or the stored result of an equal call."""
        if torch.compiler.is_compiling():  # the compiler removes duplicate computation itself
            return make(*args)
        key = (
            torch.is_inference_mode_enabled(),
            *args,
        )  # tensors of inference mode cannot be used in training
        for entry_key, result in self._entries:
            if all(a.matches(b) for a, b in zip(entry_key, key, strict=True)):
                return result
        with torch.no_grad():
            result = make(*args)
        self._entries = [([_TensorKey(x) for x in key], result), *self._entries[:1]]
        return result

    def __reduce__(self) -> tuple[type[MemoizeLast], tuple[()]]:
        return MemoizeLast, ()  # a copy starts with nothing


class _TensorKey:
    """One argument of a stored call."""

    def __init__(self, value: Any) -> None:
        self.value, self.version = value, _version(value)

    def matches(self, other: Any) -> bool:
        if not isinstance(other, Tensor) or not isinstance(self.value, Tensor):
            return type(self.value) is type(other) and bool(self.value == other)
        if not self.value.is_set_to(other):
            return False
        if isinstance(self.version, Tensor):
            return other.is_inference() and torch.equal(self.version, other)
        return not other.is_inference() and self.version == other._version


def _version(value: Any) -> int | Tensor | None:
    """The write counter of a tensor; tensors of inference mode have none, so their values are stored."""
    if not isinstance(value, Tensor):
        return None
    return value.clone() if value.is_inference() else value._version
