"""Watch a forward pass: hooks on the modules of a model write each call into a trace, in their real order."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch import Tensor, nn

from polyhead.explain.record_attention import record_linear
from polyhead.explain.record_parts import record_other
from polyhead.explain.trace import Call, Facts, Place, Step, Trace, find_recorder, sizes
from polyhead.models import Encoder
from polyhead.nn.block.base import ShowsWeights
from polyhead.nn.dropout import Dropout
from polyhead.nn.embedding import Embedding
from polyhead.nn.residual import Residual
from polyhead.nn.stack import Stack


@contextmanager
def watch_model(
    model: nn.Module, lengths: Sequence[int], windows: Sequence[tuple[int, int]]
) -> Iterator[Trace]:
    """Write the forward passes of this thread into a trace, for texts of ``lengths`` tokens.

    ``windows`` are the tokens of each that arrays cover.
    """
    trace = Trace(lengths, windows, model)
    watch = _Watch(model, trace)
    try:
        watch.start()
        yield trace
    finally:
        watch.stop()


class _Watch:
    """The hooks on a model, and where its forward pass is."""

    def __init__(self, model: nn.Module, trace: Trace) -> None:
        self.model, self.trace, self.thread_id = model, trace, get_ident()
        self.handles: list[Any] = []
        self.hooked_attentions: list[tuple[Any, Any]] = []
        self.parents, self.roles = _find_parents(model)
        self.stack: tuple[str, Stack] | None = None
        self.layer = -1
        self.is_in_layer = False
        self.layer_x: Tensor | None = None
        self.residual_x: list[tuple[Residual, Tensor]] = []
        self.branches: list[str] = []
        self.branch_scale = self.skip = 1.0
        self.depth = 0  # of calls inside of a part
        self.weights: Tensor | None = None

    def start(self) -> None:
        """Register all hooks."""
        for module in self.model.modules():
            self.handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            self.handles.append(module.register_forward_hook(self._leave, with_kwargs=True))
            recorder = find_recorder(module)
            # those of known softmax attentions are computed from their scores
            if isinstance(module, ShowsWeights) and recorder in (record_other, record_linear):
                self.hooked_attentions.append((module, self._see_weights))
                module.weights_hooks.append(self._see_weights)

    def stop(self) -> None:
        """Remove them."""
        for handle in self.handles:
            handle.remove()
        for module, hook in self.hooked_attentions:
            module.weights_hooks.remove(hook)

    def _see_weights(self, weights: Tensor) -> None:
        if get_ident() == self.thread_id:
            self.weights = weights

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Facts) -> None:
        if get_ident() != self.thread_id:
            return
        if self.depth:
            self.depth += 1
            return
        x = args[0] if args else None
        if isinstance(module, Stack):
            self.stack, self.layer = (self._path(module), module), -1
        elif self._is_layer(module):
            self.layer, self.layer_x, self.branches, self.is_in_layer = self.layer + 1, x, [], True
        elif isinstance(module, Residual) and x is not None:
            self.residual_x.append((module, x))
        elif isinstance(module, Dropout) and isinstance(self._parent(module), Residual):
            self._note_branch(self._parent(module), args[0])
        elif self._is_part(module):
            self._close_post_norm(module, x)
            self.depth = 1

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: Facts, output: Any) -> None:
        if get_ident() != self.thread_id:
            return
        if self.depth > 1:
            self.depth -= 1
            return
        if isinstance(module, Stack):
            self.stack, self.layer = None, -1
        elif self._is_layer(module):
            self._close_layer(module, output)
        elif isinstance(module, Residual):
            residual, x = self.residual_x.pop()
            if residual.norm_first and self.branches:
                self._add_residual(residual, x, output)
        elif self.depth == 1:  # a part; its recorder may call it again
            inputs = _bind(module, args, kwargs) | {"parent": self._parent(module), "weights": self.weights}
            self.trace.record(Call(self.trace, module, self._place(module), inputs, output))
            self.depth, self.weights = 0, None

    def _close_post_norm(self, norm: nn.Module, x: Any) -> None:
        """Write the sum that a norm after it reads."""
        if not self.residual_x or not self.branches:
            return
        residual, residual_x = self.residual_x[-1]
        if not residual.norm_first and norm is residual.norm:
            self._add_residual(residual, residual_x, x)

    def _note_branch(self, residual: Any, x: Tensor) -> None:
        """Note the output of a sub-layer, which its residual adds."""
        place = self._place(residual)
        name = self.trace.find(x)
        if name is None:
            name = self.trace.name_tokens(x, self.trace.unique_path(f"{place.path}.branch"), place.side)
            *_, before, last = self.trace.steps
            if last.kind == "conv":
                last.x = before.out if residual.norm_first else self.trace.find(self.layer_x)
                last.out, last.shape_in, last.shape_out = name, sizes(x), sizes(x)
            elif last.kind == "recurrent":  # of both directions side by side
                last.out, last.shape_out = name, sizes(x)
        self.branches.append(name)
        self.branch_scale, self.skip = residual.scale, residual.skip

    def _add_residual(self, module: nn.Module, x: Tensor, total: Tensor) -> None:
        """Write a residual sum: x and one branch, or the branches of parallel sub-layers."""
        trace, place = self.trace, self._place(module)
        path = trace.unique_path(place.path)
        x_name = trace.name_tokens(x, f"{path}.in", place.side)
        branches, self.branches = self.branches, []
        terms, shape = branches, tuple(trace.store.shape(x_name))
        if self.skip == 0 and self.branch_scale == 1 and len(branches) == 1:  # nothing is added
            trace.bind(total, branches[0])
            return
        if self.branch_scale != 1:
            terms = [
                trace.store.derive(f"{path}.scaled{i}", shape, "scale", x=name, by=self.branch_scale)
                for i, name in enumerate(branches)
            ]
        first = x_name
        if self.skip != 1:
            first = trace.store.derive(f"{path}.skip", shape, "scale", x=x_name, by=self.skip)
        shown = total[0, trace.window(place.side)]
        out = trace.store.derive_sum(f"{path}.out", [first, *terms], shown)
        trace.bind(total, out)
        values = {"x": x_name, "branch": branches[0]} | {
            f"branch_{i}": name for i, name in enumerate(branches[1:], 2)
        }
        step = Step(
            place, "residual", module, x_name, out, values, {"scale": self.branch_scale, "skip": self.skip}
        )
        step.shape_in = step.shape_out = sizes(total)
        trace.steps.append(step)

    def _close_layer(self, layer: nn.Module, output: Any) -> None:
        """Write the sum of parallel sub-layers, or a block of an unknown kind by its input and output."""
        place, x = self._place(layer), self.layer_x
        if self.branches and x is not None:
            self._add_residual(layer, x, output)
        if self.trace.find(output) is None and isinstance(output, Tensor):
            record_other(Call(self.trace, layer, place, {"x": x}, output), layer)
        self.trace.layers.append(
            {
                "stack": place.stack,
                "side": place.side,
                "index": place.layer,
                "path": place.path,
                "in": self.trace.find(x),
                "out": self.trace.find(output),
            }
        )
        self.is_in_layer = False

    def _is_layer(self, module: nn.Module) -> bool:
        return self.stack is not None and any(module is layer for layer in self.stack[1].layers)

    def _is_part(self, module: nn.Module) -> bool:
        """Whether calls of a module are steps: children of blocks, residuals, stacks and models."""
        containers = (Stack, Encoder, Residual, nn.ModuleList, Dropout)
        if isinstance(module, containers) or module is self.model:
            return False
        if isinstance(module, Embedding):
            return True
        parent = self._parent(module)
        return (
            parent is self.model
            or isinstance(parent, Residual | Stack)
            or (self.is_in_layer and parent is not None and self._is_layer(parent))
            or isinstance(parent, nn.ModuleList)
        )

    def _parent(self, module: nn.Module) -> nn.Module | None:
        return self.parents.get(id(module))

    def _path(self, module: nn.Module) -> str:
        """The path of a module, in the layer that is running where layers share their weights."""
        names: list[str] = []
        at: nn.Module | None = module
        while at is not None and at is not self.model:
            names.append(str(self.layer) if self._is_layer(at) else self.roles[id(at)])
            at = self._parent(at)
        return ".".join(reversed(names))

    def _place(self, module: nn.Module) -> Place:
        path = self._path(module)
        stack = self.stack[0].rpartition(".")[2] if self.stack is not None else ""
        side = int(path.startswith("decoder") and len(self.trace.windows) > 1)
        if len(self.trace.windows) > 1 and self.stack is None and not path.startswith("encoder"):
            side = 1  # the head of an encoder-decoder reads the target
        layer = self.layer if self.is_in_layer else None
        return Place(path, self.roles.get(id(module), ""), stack, layer, side)


def _find_parents(model: nn.Module) -> tuple[dict[int, nn.Module], dict[int, str]]:
    """The first parent of every module, and its name there."""
    parents: dict[int, nn.Module] = {}
    roles: dict[int, str] = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            if id(child) not in parents:
                parents[id(child)], roles[id(child)] = parent, name
    return parents, roles


def _bind(module: nn.Module, args: tuple[Any, ...], kwargs: Facts) -> Facts:
    """The arguments of a call by name; the first one is ``x`` under any name, except of tokens."""
    try:
        bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
    except TypeError:
        return {"x": args[0]} if args else {}
    inputs = {name: value for name, value in bound.items() if name != "self"}
    if args and "tokens" not in inputs:
        inputs["x"] = args[0]
    return inputs
