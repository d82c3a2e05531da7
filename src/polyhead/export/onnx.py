"""A model as ONNX graphs, which onnxruntime and others run without PyTorch."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import onnxscript  # noqa: F401  torch writes graphs with it; where it is missing the user is told so before any work
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor
from torch.utils._pytree import tree_leaves

from polyhead.errors import UserError, unknown
from polyhead.export.graphs import ALL, Graph, Sizes, graphs
from polyhead.export.onnx_limits import in_the_way
from polyhead.models import Model

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.float32}
# how far off, of the spread of what the model says, before rounding
CLOSE = {
    "fp32": 1e-3,
    "fp16": 3e-2,
    "int8": 1e-3,
}
# bytes of weights in the file of a graph; the format ends at 2 GB, others are in a file beside it
LARGEST = 2**31 - 2**24
TRACED, PROVED = Sizes(2, 3, 5, 4), (Sizes(1, 6, 4, 0), Sizes(3, 1, 2, 7))
TALKATIVE = ("torch.onnx", "onnxscript", "onnx_ir", "root")


def write(model: Model, directory: Path, dtype: str = "fp32") -> list[str]:
    """Write the graphs of a model into a directory; the names of their files. The model itself takes on the dtype.

    With "int8" the weights of linear maps are rounded, and what they are multiplied with at run time.
    """
    check(model, dtype)
    model = model.to(DTYPES[dtype]).eval()
    found = graphs(model, TRACED)
    for i, graph in enumerate(found):
        path = directory / f"{graph.file}.onnx"
        made = traced(graph)
        _turn_weights(made.model.graph, shared=dtype == "int8")
        with TemporaryDirectory(dir=directory) as place:
            whole = Path(place) / path.name if dtype == "int8" else path
            large = _save(made, whole)
            _prove(model, i, whole, CLOSE[dtype])
            if dtype == "int8":
                _round(whole, path, large)
                _prove(model, i, path, math.inf)
    return [f"{graph.file}.onnx" for graph in found]


def check(model: Model, dtype: str) -> None:
    """A UserError names a part that is no graph of tensors, or a dtype that is none."""
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    for part, reason in in_the_way(model.config):
        raise UserError(f"{part} cannot be written to ONNX: {reason}")


def traced(graph: Graph) -> Any:
    """The graph as ``torch.onnx`` writes it, for any batch and any lengths."""
    dims: dict[str, Any] = {
        axis: torch.export.Dim.DYNAMIC if axis == ALL else torch.export.Dim(axis)
        for given in graph.inputs
        for axis in given.axes.values()
    }
    shapes = [{at: dims[axis] for at, axis in given.axes.items()} for given in graph.inputs]
    try:
        with torch.no_grad(), _silence():
            made = torch.onnx.export(
                graph.module,
                graph.arguments([given.example for given in graph.inputs]),
                input_names=[given.name for given in graph.inputs],
                output_names=graph.outputs,
                dynamic_shapes=graph.arguments(shapes),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise UserError(f"this model cannot be written to ONNX; torch says: {_said(error)}") from error
    assert made is not None
    _plain(made.model, graph)
    return made


def _said(error: BaseException) -> str:
    """The first line of what was wrong at the bottom of it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def _plain(model: Any, graph: Graph) -> None:
    """Without what tracing leaves behind, which names files of the machine; the axes of inputs by their names."""
    for part in (model, model.graph, *model.functions.values()):
        part.metadata_props.clear()
    for part in (model.graph, *model.functions.values()):
        for node in part.all_nodes():
            for holder in (node, *node.outputs):
                holder.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    for value, given in zip(model.graph.inputs, graph.inputs, strict=True):
        sizes = [given.axes.get(at, size) for at, size in enumerate(given.example.shape)]
        value.shape = type(value.shape)(sizes)


def _turn_weights(graph: Any, shared: bool) -> None:
    """Weights lie as they are multiplied, not to be turned at every start; only such are rounded.

    A head that is tied to the embedding is turned, and so written once more, if ``shared`` ones are.
    """
    for node in [node for node in graph if node.op_type == "Transpose"]:
        (given,), (made,) = node.inputs, node.outputs
        if given.const_value is None or len(given.const_value.shape) != 2 or made.is_graph_output():
            continue
        if len(given.uses()) > 1 and not shared:
            continue
        made.replace_all_uses_with(_turned(graph, given))
        graph.remove(node, safe=True)
        if not given.uses():
            del graph.initializers[given.name]
    for node in [node for node in graph if node.op_type == "Gemm"]:
        given = node.inputs[1]
        if node.attributes["transB"].value and len(given.uses()) == 1:
            node.replace_input_with(1, _turned(graph, given))
            del node.attributes["transB"], graph.initializers[given.name]


def _turned(graph: Any, given: Any) -> Any:
    """A weight the other way round, beside itself."""
    turned = np.ascontiguousarray(given.const_value.numpy().T)
    tensor = onnx_ir.tensor(turned, name=f"{given.name}.turned")
    weight = onnx_ir.Value(
        name=tensor.name, type=given.type, shape=onnx_ir.Shape(turned.shape), const_value=tensor
    )
    graph.register_initializer(weight)
    return weight


def _save(made: Any, path: Path) -> bool:
    """Write it, and say whether its weights are in a file of their own."""
    large: bool = sum(value.const_value.nbytes for value in made.model.graph.initializers.values()) > LARGEST
    made.save(path, external_data=large)
    return large


@torch.no_grad()
def _prove(model: Model, number: int, path: Path, close: float) -> None:
    """Run what was written on other sizes than it was traced with; a UserError where it says anything else."""
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no class in common
        raise UserError(f"onnxruntime does not open {path.name} of this model: {_said(error)}") from error
    for sizes in PROVED:
        graph = graphs(model, sizes.within(model.config.max_len))[number]
        wanted = tree_leaves(graph.module(*graph.arguments([given.example for given in graph.inputs])))
        found = session.run(None, {given.name: given.example.numpy() for given in graph.inputs})
        for name, ours, theirs in zip(graph.outputs, wanted, found, strict=True):
            off = float(
                (torch.from_numpy(theirs) - ours).float().square().mean().sqrt() / _spread(ours.float())
            )
            if not off < close:
                raise UserError(
                    f"this model cannot be written to ONNX: {name} of {path.name} is off by {off:.2g} of its spread"
                )


def _spread(said: Tensor) -> Tensor:
    """By which an error is measured; of one number a row, as rerankers say it, its size, or that of a sigmoid's bend."""
    return said.std() if said.size(-1) > 1 else said.abs().mean().clamp(min=1)


def _round(whole: Path, path: Path, large: bool) -> None:
    """Weights of linear maps in 8 bits, a scale for each output; what meets them is rounded as it comes."""
    with _silence():
        quantize_dynamic(
            whole,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            weight_type=QuantType.QUInt8,  # signed ones overflow in sums of 16 bits where there is no VNNI
            use_external_data_format=large,
            extra_options={"MatMulConstBOnly": True},
        )


@contextmanager
def _silence() -> Iterator[None]:
    """Libraries that talk of their own matters do not meanwhile."""
    logs = [logging.getLogger(name) for name in TALKATIVE]
    levels = [log.level for log in logs]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for log in logs:
                log.setLevel(logging.ERROR)
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
