"""Export a model as ONNX graphs, which onnxruntime and others run without PyTorch."""

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
import onnxscript  # noqa: F401  torch writes graphs with it: an import error here comes before any work
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor
from torch.utils._pytree import tree_leaves

from polyhead.core.errors import UserError, unknown_name_error
from polyhead.export.onnx_graphs import ALL_TOKENS, ExampleSizes, Graph, build_graphs
from polyhead.export.targets import onnx_unsupported
from polyhead.models import Model

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.float32}
# maximum RMS error relative to the standard deviation of the outputs, before quantization
_TOLERANCES = {"fp32": 1e-3, "fp16": 3e-2, "int8": 1e-3}
# maximum bytes of weights in a graph's file, as the format ends at 2 GB; larger ones use a separate file
MAX_GRAPH_BYTES = 2**31 - 2**24
TRACE_SIZES, VERIFY_SIZES = ExampleSizes(2, 3, 5, 4), (ExampleSizes(1, 6, 4, 0), ExampleSizes(3, 1, 2, 7))
_NOISY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir", "root")


def write_onnx(model: Model, directory: Path, dtype: str = "fp32") -> list[str]:
    """Write the graphs of a model to a directory; return their file names. Converts the model itself to the
    dtype.

    With "int8" the weights of linear maps are quantized, and their inputs at run time.
    """
    check_onnx(model, dtype)
    model = model.to(_DTYPES[dtype]).eval()
    graphs = build_graphs(model, TRACE_SIZES)
    for i, graph in enumerate(graphs):
        path = directory / f"{graph.file}.onnx"
        program = trace_graph(graph)
        _transpose_weights(program.model.graph, include_shared=dtype == "int8")
        with TemporaryDirectory(dir=directory) as temp_dir:
            fp32_path = Path(temp_dir) / path.name if dtype == "int8" else path
            is_external = _save(program, fp32_path)
            _verify(model, i, fp32_path, _TOLERANCES[dtype])
            if dtype == "int8":
                _quantize(fp32_path, path, is_external)
                _verify(model, i, path, math.inf)
    return [f"{graph.file}.onnx" for graph in graphs]


def check_onnx(model: Model, dtype: str) -> None:
    """Raise a UserError for parts that a graph cannot express or an unknown dtype."""
    if dtype not in _DTYPES:
        raise unknown_name_error("dtype", dtype, _DTYPES)
    for part, reason in onnx_unsupported(model.config):
        raise UserError(f"{part} cannot be written to ONNX: {reason}")


def trace_graph(graph: Graph) -> Any:
    """Return the graph exported by ``torch.onnx``, with dynamic batch size and lengths."""
    dims: dict[str, Any] = {
        axis: torch.export.Dim.DYNAMIC if axis == ALL_TOKENS else torch.export.Dim(axis)
        for graph_input in graph.inputs
        for axis in graph_input.axes.values()
    }
    shapes = [{at: dims[axis] for at, axis in graph_input.axes.items()} for graph_input in graph.inputs]
    try:
        with torch.no_grad(), _silence_loggers():
            program = torch.onnx.export(
                graph.module,
                graph.group_arguments([graph_input.example for graph_input in graph.inputs]),
                input_names=[graph_input.name for graph_input in graph.inputs],
                output_names=graph.outputs,
                dynamic_shapes=graph.group_arguments(shapes),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise UserError(
            f"this model cannot be written to ONNX; torch reports: {_root_message(error)}"
        ) from error
    assert program is not None
    _strip_metadata(program.model, graph)
    return program


def _root_message(error: BaseException) -> str:
    """Return the first line of the root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def _strip_metadata(model: Any, graph: Graph) -> None:
    """Remove metadata of tracing, which contains local file paths, and name the axes of inputs."""
    for part in (model, model.graph, *model.functions.values()):
        part.metadata_props.clear()
    for part in (model.graph, *model.functions.values()):
        for node in part.all_nodes():
            for holder in (node, *node.outputs):
                holder.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    for value, graph_input in zip(model.graph.inputs, graph.inputs, strict=True):
        sizes = [graph_input.axes.get(at, size) for at, size in enumerate(graph_input.example.shape)]
        value.shape = type(value.shape)(sizes)


def _transpose_weights(graph: Any, include_shared: bool) -> None:
    """Store weights transposed, to avoid a Transpose at every start; only these are quantized.

    A head tied to the embedding is transposed, and so stored twice, if ``include_shared``.
    """
    for node in [node for node in graph if node.op_type == "Transpose"]:
        (weight,), (output,) = node.inputs, node.outputs
        if weight.const_value is None or len(weight.const_value.shape) != 2 or output.is_graph_output():
            continue
        if len(weight.uses()) > 1 and not include_shared:
            continue
        output.replace_all_uses_with(_add_transposed(graph, weight))
        graph.remove(node, safe=True)
        if not weight.uses():
            del graph.initializers[weight.name]
    for node in [node for node in graph if node.op_type == "Gemm"]:
        weight = node.inputs[1]
        if node.attributes["transB"].value and len(weight.uses()) == 1:
            node.replace_input_with(1, _add_transposed(graph, weight))
            del node.attributes["transB"], graph.initializers[weight.name]


def _add_transposed(graph: Any, initializer: Any) -> Any:
    """Add the transpose of a weight to the graph."""
    transposed = np.ascontiguousarray(initializer.const_value.numpy().T)
    tensor = onnx_ir.tensor(transposed, name=f"{initializer.name}.turned")
    weight = onnx_ir.Value(
        name=tensor.name, type=initializer.type, shape=onnx_ir.Shape(transposed.shape), const_value=tensor
    )
    graph.register_initializer(weight)
    return weight


def _save(program: Any, path: Path) -> bool:
    """Save the program; return whether its weights are in a separate file."""
    is_external: bool = (
        sum(value.const_value.nbytes for value in program.model.graph.initializers.values()) > MAX_GRAPH_BYTES
    )
    program.save(path, external_data=is_external)
    return is_external


@torch.no_grad()
def _verify(model: Model, graph_index: int, path: Path, tolerance: float) -> None:
    """Compare the exported graph with the model at other sizes than those of tracing; a UserError if they
    differ.
    """
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no common exception class
        raise UserError(
            f"onnxruntime cannot load {path.name} of this model: {_root_message(error)}"
        ) from error
    for sizes in VERIFY_SIZES:
        graph = build_graphs(model, sizes.clamp_to(model.config.max_len))[graph_index]
        expected = tree_leaves(
            graph.module(*graph.group_arguments([graph_input.example for graph_input in graph.inputs]))
        )
        outputs = session.run(
            None, {graph_input.name: graph_input.example.numpy() for graph_input in graph.inputs}
        )
        for name, value, output in zip(graph.outputs, expected, outputs, strict=True):
            deviation = float(
                (torch.from_numpy(output) - value).float().square().mean().sqrt()
                / _error_scale(value.float())
            )
            if not deviation < tolerance:
                raise UserError(
                    f"this model cannot be written to ONNX: {name} of {path.name} is off by "
                    f"{deviation:.2g} of its standard deviation"
                )


def _error_scale(outputs: Tensor) -> Tensor:
    """Return the scale of errors: the standard deviation; of a single number per row its mean size, at least
    1 (a sigmoid's scale).
    """
    return outputs.std() if outputs.size(-1) > 1 else outputs.abs().mean().clamp(min=1)


def _quantize(source_path: Path, path: Path, external_data: bool) -> None:
    """Quantize the weights of linear maps to 8 bits per output channel; their inputs are quantized
    dynamically.
    """
    with _silence_loggers():
        quantize_dynamic(
            source_path,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            weight_type=QuantType.QUInt8,  # signed weights overflow in 16-bit sums without VNNI
            use_external_data_format=external_data,
            extra_options={"MatMulConstBOnly": True},
        )


@contextmanager
def _silence_loggers() -> Iterator[None]:
    """Silence the logs and warnings of the export libraries."""
    logs = [logging.getLogger(name) for name in _NOISY_LOGGERS]
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
