"""Record of one forward pass: ordered steps and the arrays they refer to.

Shapes: T tokens shown, S keys shown, H query heads, K key/value heads, D width of a head, C d_model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

import polyhead.core
from polyhead.explain.arrays import ArrayStore
from polyhead.nn.position.base import Position

_PACKAGE = Path(polyhead.core.__path__[0]).parent
Arrays = Mapping[str, Tensor | None]
"""Role of an array of a part -> its numbers."""
Names = dict[str, str]
"""Role of an array of a part -> its name."""
Facts = dict[str, Any]
_POSITION_METHODS = ("scores", "bias", "rotate", "embed")  # where a position scheme acts


class LinearMap(NamedTuple):
    """The parameters of a linear map."""

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def from_module(cls, module: nn.Module) -> LinearMap | None:
        """Those of a module; None if it has no weight of its own."""
        own = dict(module.named_parameters(recurse=False))
        return cls(own["weight"], own.get("bias")) if "weight" in own else None


class Place(NamedTuple):
    """Where a part is in the model: its path, its stack and layer, and the text that it reads."""

    path: str
    role: str  # the name under which its parent has it: attn, cross, ffn, norm
    stack: str = ""
    layer: int | None = None
    side: int = 0  # index of the text


class Call(NamedTuple):
    """One call of a part, and the trace that records it: what it was called with, and what it returned."""

    trace: Trace
    module: nn.Module
    place: Place
    inputs: Facts  # the arguments of forward() by name
    output: Any

    @property
    def x(self) -> Tensor:
        """The first argument."""
        x: Tensor = self.inputs["x"]
        return x

    @property
    def pos(self) -> Tensor | None:
        """The positions of the tokens; None: 0, 1, ..."""
        return self.inputs.get("pos")

    @property
    def window(self) -> slice:
        """The tokens that are shown of the text that the part reads."""
        return self.trace.window(self.place.side)

    def store(self, arrays: Arrays) -> Names:
        """Store arrays of the part; None is left out."""
        return self.trace.store_all(self.place.path, arrays)

    def describe_maps(self, parts: Mapping[str, LinearMap | nn.Module | None]) -> tuple[Names, Facts]:
        """Linear maps by role: their biases as arrays "role_bias", and the names of their parameters."""
        found = {
            role: LinearMap.from_module(part) if isinstance(part, nn.Module) else part
            for role, part in parts.items()
        }
        maps = {role: linear for role, linear in found.items() if linear is not None}
        names = self.trace.parameter_names
        return self.store({f"{role}_bias": linear.bias for role, linear in maps.items()}), {
            "maps": {
                role: {
                    "weight": names.get(id(weight)),
                    "bias": names.get(id(bias)),
                    "width": weight.numel() // len(weight),
                }
                for role, (weight, bias) in maps.items()
            }
        }

    def derive(self, role: str, shape: Sequence[int], op: str, **inputs: Any) -> str:
        """Add an array of the part that the reader computes."""
        return self.trace.store.derive(f"{self.place.path}.{role}", shape, op, **inputs)

    def name(self, tensor: Tensor, role: str) -> str:
        """The name of the array of a tensor of tokens, which is stored if it is not known."""
        return self.trace.name_tokens(tensor, f"{self.place.path}.{role}", self.place.side)

    def add(
        self,
        kind: str,
        x: str | None,
        out: str | None,
        values: Names,
        facts: Facts,
        memory_side: int | None = None,
    ) -> None:
        """Append a step of the part."""
        shapes = sizes(self.inputs.get("x", self.inputs.get("tokens"))), sizes(self.output)
        self.trace.steps.append(
            Step(self.place, kind, self.module, x, out, values, facts, memory_side, *shapes)
        )

    def add_tokens(self, kind: str, values: Names, facts: Facts, memory_side: int | None = None) -> None:
        """Append a step whose input and output are tokens."""
        x = self.name(self.x, "in")
        self.add(kind, x, self.name(self.output, "out"), values, facts, memory_side)


@dataclass
class Step:
    """One step of the walk: a part of the model, with the names of its arrays."""

    place: Place
    kind: str
    module: nn.Module | None
    x: str | None
    out: str | None = None
    values: Names = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)
    memory_side: int | None = None
    shape_in: Sequence[int] = ()
    shape_out: Sequence[int] = ()

    def to_json(self) -> Facts:
        """The step for the page, without what the config and the cost model know of it."""
        place = self.place
        return {
            "path": place.path,
            "kind": self.kind,
            "class": type(self.module).__name__ if self.module is not None else None,
            "role": place.role,
            "stack": place.stack,
            "layer": place.layer,
            "side": place.side,
            "memory_side": self.memory_side,
            "shape": {"in": list(self.shape_in), "out": list(self.shape_out)},
            "source": find_source(self.module),
            "in": self.x,
            "out": self.out,
            "values": self.values,
            "facts": self.facts,
        }


class Trace:
    """The record of one forward pass over one row of each text.

    ``lengths`` are the numbers of tokens of each text, ``windows`` those that arrays cover: (first, stop).
    ``model`` has the names of the parameters.
    """

    def __init__(self, lengths: Sequence[int], windows: Sequence[tuple[int, int]], model: nn.Module) -> None:
        self.store, self.lengths, self.windows = ArrayStore(), list(lengths), list(windows)
        self.parameter_names = {id(p): name for name, p in model.named_parameters()}  # as in the file
        self.layers: list[Facts] = []
        self.steps: list[Step] = []
        self.schemes: dict[str, Names] = {}  # arrays of the position schemes of attention
        self._names: dict[int, tuple[Tensor, str]] = {}  # kept, so that no id is used again
        self._counts: dict[str, int] = {}

    def window(self, side: int) -> slice:
        """The tokens of a text that are shown."""
        return slice(*self.windows[side])

    def is_cut(self, side: int, length: int) -> bool:
        """Whether some of the ``length`` tokens of a text are not shown."""
        return self.windows[side] != (0, length)

    def unique_path(self, path: str) -> str:
        """The path, with a number if a part is called again."""
        self._counts[path] = self._counts.get(path, 0) + 1
        return path if self._counts[path] == 1 else f"{path}#{self._counts[path]}"

    def bind(self, tensor: Tensor, name: str) -> str:
        """Note that a tensor of the model is the array of that name."""
        self._names[id(tensor)] = tensor, name
        return name

    def find(self, tensor: Any) -> str | None:
        """The name of the array of a tensor, if it is known."""
        return self._names.get(id(tensor), (None, None))[1]

    def name_tokens(self, tensor: Tensor, name: str, side: int) -> str:
        """The array of a tensor (1, T, C): known, or stored now under that name as [T shown, C]."""
        known = self.find(tensor)
        return known or self.bind(tensor, self.store.store(name, tensor[0, self.window(side)]))

    def store_all(self, path: str, arrays: Arrays) -> Names:
        """Store arrays under ``path.role``; None is left out."""
        return {
            role: self.store.store(f"{path}.{role}", array)
            for role, array in arrays.items()
            if array is not None
        }

    def record(self, call: Call) -> None:
        """Write one call by the recorder of its class; of a class without one, its input and output."""
        path = self.unique_path(call.place.path)
        find_recorder(call.module)(call._replace(place=call.place._replace(path=path)), call.module)


Recorder = Callable[[Call, Any], None]
"""Writes one call of a part into its trace."""

RECORDERS: dict[type, Recorder] = {}
"""How a part is written down, by its class; a part without one has its inputs and outputs."""


def records(*kinds: type) -> Callable[[Recorder], Recorder]:
    """Decorator that registers a recorder for classes of parts and their subclasses."""

    def register(recorder: Recorder) -> Recorder:
        RECORDERS.update(dict.fromkeys(kinds, recorder))
        return recorder

    return register


def find_recorder(module: nn.Module) -> Recorder:
    """The recorder of a part: that of its nearest class, at last that of any module."""
    return next(RECORDERS[kind] for kind in type(module).__mro__ if kind in RECORDERS)


def find_source(module: nn.Module | None) -> Facts | None:
    """File, relative to the package, and first line of a part's forward pass; None if it has no source."""
    if module is None:
        return None
    names = _POSITION_METHODS if isinstance(module, Position) else ("forward",)
    methods = (vars(base)[name] for base in type(module).__mro__ for name in names if name in vars(base))
    return locate_function(next(methods, None))


def locate_function(function: Any) -> Facts | None:
    """File, relative to the package, and first line of a function; None if it has no source."""
    try:
        plain = inspect.unwrap(function)
        file, (lines, start) = Path(inspect.getsourcefile(plain) or ""), inspect.getsourcelines(plain)
    except (TypeError, OSError):
        return None
    name = file.relative_to(_PACKAGE).as_posix() if file.is_relative_to(_PACKAGE) else file.name
    decorators = next((i for i, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    return {"file": name, "line": start + decorators}


def sizes(value: Any) -> list[int]:
    """The shape of a tensor without its batch of one row; empty for anything else."""
    return list(value.shape[1:]) if isinstance(value, Tensor) else []
