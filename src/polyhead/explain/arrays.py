"""The arrays of an explanation: stored compactly, or derived from others by a formula.

A stored array is a row of integers times one step, fine enough for the numbers of the model to 1e-6 of their
usual size. The integers are zigzag coded, and the lowest bytes of all arrays come first, then all second
bytes, and so on: zlib compresses similar bytes best. A derived array is an operation
on others, computed by the reader.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polyhead.core.errors import NotFiniteError

Array = NDArray[Any]
Values = dict[str, dict[str, Any]]
"""Name of an array -> how to read it: where it is stored, or what it is derived from."""

STEP_OF_MEDIAN = 2.0**-20  # of the median magnitude: an error of at most half of it
_LARGEST = 2**31 - 1  # with a sign, in 32 bits
_PLAIN = str.maketrans("<>&", ".,:")  # of base 85: characters that HTML does not read


class ArrayStore:
    """Arrays by name. Stored ones are written by ``pack``, in the order in which they came."""

    def __init__(self) -> None:
        self.values: Values = {}
        self._arrays: dict[str, Array] = {}
        self._sums: dict[str, Array] = {}  # the exact sum that a derived sum should give
        self._levels: dict[str, int] = {}

    def store(self, name: str, array: Tensor | Array, *, levels: int | None = None) -> str:
        """Store an array of floats or integers; return its name. NaN and infinity are a NotFiniteError.

        With ``levels`` it is coarse: its largest magnitude is so many steps.
        """
        host = to_numpy(array)
        if not np.isfinite(host).all():
            raise NotFiniteError
        if levels is not None:
            self._levels[name] = levels
        self._arrays[name] = host
        self.values[name] = {"shape": list(host.shape)}
        return name

    def derive(self, name: str, shape: Sequence[int], op: str, **inputs: Any) -> str:
        """Add an array that the reader computes from others; return its name."""
        self.values[name] = {"shape": list(shape), "op": op, **inputs}
        return name

    def shape(self, name: str) -> list[int]:
        """The shape of an array."""
        shape: list[int] = self.values[name]["shape"]
        return shape

    def derive_sum(self, name: str, terms: list[str], total: Tensor) -> str:
        """Add a sum of arrays, and store the last term so that it equals ``total``.

        Without it the rounding errors of all branches of a stack would add up. If the last term is derived,
        the sum itself is stored.
        """
        if terms[-1] not in self._arrays:
            return self.store(name, total)
        self._sums[name] = to_numpy(total)
        return self.derive(name, self._sums[name].shape, "add", args=terms)

    def make_reader(self) -> ArrayReader:
        """A reader of the arrays as they were stored."""
        return ArrayReader(self.values, self._arrays.__getitem__)

    def pack(self) -> str:
        """Write all stored arrays as one text, and where each is into ``values``."""
        planes: list[bytearray] = [bytearray() for _ in range(4)]
        corrected = self._correct_branches()
        for name, array in self._arrays.items():
            steps, scale = quantize(corrected.get(name, array), array, self._levels.get(name))
            zigzag = ((steps << 1) ^ (steps >> 63)).astype("<u4").ravel()
            n_planes = max(1, (int(zigzag.max(initial=0)).bit_length() + 7) // 8)
            self.values[name] |= {"at": [len(plane) for plane in planes[:n_planes]], "scale": scale}
            for plane, column in zip(planes, zigzag.view(np.uint8).reshape(-1, 4).T[:n_planes], strict=False):
                plane += column.tobytes()
        starts = np.cumsum([0, *map(len, planes)]).tolist()
        for name in self._arrays:
            at = self.values[name]["at"]
            self.values[name]["at"] = [start + offset for start, offset in zip(starts, at, strict=False)]
        return encode_bytes(b"".join(planes))

    def _correct_branches(self) -> dict[str, Array]:
        """The branch of each sum that makes the sum exact, given how the reader gets the rest of it."""
        corrected: dict[str, Array] = {}
        read = ArrayReader(self.values, self._read_rounded(corrected))
        for name, total in self._sums.items():
            *rest, branch = self.values[name]["args"]
            if branch not in corrected:
                corrected[branch] = total.astype(np.float64) - sum(read(term) for term in rest)
        return corrected

    def _read_rounded(self, branches: Mapping[str, Array]) -> Callable[[str], Array]:
        def read(name: str) -> Array:
            steps, scale = quantize(branches.get(name, self._arrays[name]), self._arrays[name])
            return steps * scale

        return read


def encode_bytes(data: bytes) -> str:
    """Bytes, compressed, as a text that HTML does not read."""
    return base64.b85encode(zlib.compress(data, 9)).decode().translate(_PLAIN)


def to_numpy(array: Tensor | Array) -> Array:
    """A tensor as an array of numpy; half precision becomes float32, which numpy knows."""
    if not isinstance(array, Tensor):
        return array
    is_low = array.is_floating_point() and array.element_size() < 4
    host: Array = (array.float() if is_low else array).detach().cpu().numpy()
    return host


def quantize(array: Array, reference: Array, levels: int | None = None) -> tuple[NDArray[np.int64], float]:
    """An array as integers and their step, which the magnitudes of ``reference`` determine, or ``levels``."""
    if reference.dtype.kind in "iub":
        return array.astype(np.int64), 1.0
    magnitudes = np.abs(reference[reference != 0]).astype(np.float64)
    if not magnitudes.size:
        return np.zeros(array.shape, np.int64), 1.0
    scale = float(magnitudes.max()) / (levels or _LARGEST)
    if (
        reference.ndim > 1 and levels is None
    ):  # vectors are weights, slopes and rates: few numbers, of any size
        scale = max(float(np.median(magnitudes)) * STEP_OF_MEDIAN, scale)
    return np.rint(array.astype(np.float64) / scale).astype(np.int64), scale


class ArrayReader:
    """Reads arrays by name, in float64, and computes the derived ones."""

    def __init__(self, values: Values, read_stored: Callable[[str], Array]) -> None:
        self._values, self._read_stored = values, read_stored
        self._cache: dict[str, Array] = {}

    def __call__(self, name: str) -> Array:
        """The array of that name."""
        if name not in self._cache:
            value = self._values[name]
            if "op" not in value:
                return self._cache.setdefault(name, self._read_stored(name))
            inputs = {key: entry for key, entry in value.items() if key not in ("op", "shape")}
            for key, entry in inputs.items():  # no helper: a sum of many layers is a deep recursion
                if isinstance(entry, list):
                    inputs[key] = list(map(self, entry))
                elif isinstance(entry, str) and entry in self._values:
                    inputs[key] = self(entry)
            self._cache[name] = np.asarray(OPERATIONS[value["op"]](**inputs))
        return self._cache[name]


def _normalize(
    *,
    x: Array,
    mean: Array | None,
    spread: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    by: str,
    plus_one: bool,
) -> Array:
    mean = np.zeros_like(spread) if mean is None else mean
    if by == "token":
        mean, spread = mean[:, None], spread[:, None]
    y = (x - mean) / np.sqrt(spread + eps)
    y = y if weight is None else y * (weight + plus_one)
    return y if bias is None else y + bias


def _softmax(*, x: Array, hidden: Array | None, outside: Array | None) -> Array:
    masked = x if hidden is None else np.where(hidden != 0, -np.inf, x)
    rest = np.full((*x.shape[:-1], 1), -np.inf) if outside is None else outside[..., None]
    top = np.maximum(masked.max(-1, keepdims=True), rest)
    top = np.where(np.isfinite(top), top, 0.0)
    exps = np.exp(masked - top)
    total = exps.sum(-1, keepdims=True) + np.exp(rest - top)
    return exps / np.where(total > 0, total, 1.0)


def _ratio(*, x: Array, eps: float, outside: Array | None) -> Array:
    total = x.sum(-1, keepdims=True) + eps
    return x / (total if outside is None else total + outside[..., None])


def _rotate(*, x: Array, cos: Array, sin: Array, layout: str) -> Array:
    pairs, is_half = cos.shape[-1], layout == "half"
    turned = x[..., : 2 * pairs]
    a, b = (turned[..., :pairs], turned[..., pairs:]) if is_half else (turned[..., ::2], turned[..., 1::2])
    both = a * cos - b * sin, b * cos + a * sin
    joined = np.concatenate(both, -1) if is_half else np.stack(both, -1).reshape(turned.shape)
    return np.concatenate([joined, x[..., 2 * pairs :]], -1)


OPERATIONS: dict[str, Callable[..., Array]] = {
    "add": lambda args: reduce(np.add, args),
    "scale": lambda x, by: x * by,
    "mean": lambda x: x.mean(-1),
    "variance": lambda x: x.var(-1),
    "mean_square": lambda x: np.square(x).mean(-1),
    "norm": _normalize,
    "softmax": _softmax,
    "ratio": _ratio,
    "mix": lambda weights, v, plus: reduce(np.add, plus, weights @ v.repeat(len(weights) // len(v), 0)),
    "join": lambda x: x.transpose(1, 0, 2).reshape(x.shape[1], -1),
    "rotate": _rotate,
}
"""What a derived array may be; arrays.js has the same."""
