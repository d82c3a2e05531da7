"""Export a language model to a GGUF file, the format of llama.cpp and its users (Ollama, LM Studio)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from torch import Tensor

from polyhead.chat.detect_template import build_template
from polyhead.core.errors import UserError, unknown_name_error
from polyhead.export.gguf_archs import GgufArch, find_arch, model_metadata, rope_freq_factors
from polyhead.export.gguf_vocabulary import tokenizer_metadata
from polyhead.hf.family import to_hf
from polyhead.hf.generation_config import UNSUPPORTED_SETTINGS, warn_unsupported_settings
from polyhead.hf.save import all_eos_ids
from polyhead.nn.state import named_state
from polyhead.run.run import Run

GGUF_FILE = "model.gguf"
_GGML_TYPE = gguf.GGMLQuantizationType
# type of the matrices, and file type of a model with them
_DTYPES = {
    "fp32": (_GGML_TYPE.F32, gguf.LlamaFileType.ALL_F32),
    "fp16": (_GGML_TYPE.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (_GGML_TYPE.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "int8": (_GGML_TYPE.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "int4": (_GGML_TYPE.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
# maximum error of a number relative to the largest of its tensor
_TOLERANCES = {
    _GGML_TYPE.F32: 0.0,
    _GGML_TYPE.F16: 2**-10,
    _GGML_TYPE.BF16: 2**-7,
    _GGML_TYPE.Q8_0: 2**-7,
    _GGML_TYPE.Q4_0: 2**-3 + 2**-10,
}
_QUANT_BLOCK = 32  # numbers of a row with a common scale in int8 and int4
_FP32_TENSORS = ("position_embd.weight",)  # matrices that llama.cpp adds, which must be fp32
# token embeddings and head: int8 in an int4 file, as in our own int4
_INT8_TENSORS = ("token_embd.weight", "output.weight")


def check_gguf(run: Run, dtype: str) -> None:
    """Raise a UserError for parts that llama.cpp does not support or an unknown dtype."""
    if dtype not in _DTYPES:
        raise unknown_name_error("dtype", dtype, _DTYPES)
    find_arch(run.model.config)
    tokenizer_metadata(run.tokenizer, run.model.config.vocab_size)
    _template_metadata(run)


@torch.no_grad()
def write_gguf(run: Run, directory: Path, dtype: str = "fp32") -> str:
    """Write model.gguf to a directory and verify it; return a short description of the model."""
    check_gguf(run, dtype)
    arch, config = find_arch(run.model.config)
    kind, file_type = _DTYPES[dtype]
    writer = gguf.GGUFWriter(directory / GGUF_FILE, arch.name)
    writer.add_file_type(file_type)
    _add_metadata(
        writer, {f"{arch.name}.{key}": value for key, value in model_metadata(config, arch).items()}
    )
    _add_metadata(
        writer,
        tokenizer_metadata(run.tokenizer, config.vocab_size)
        | _template_metadata(run)
        | _sampling_metadata(run),
    )
    tensors = gguf_tensors(run.model, arch)
    for name, tensor in tensors.items():
        tensor_type = _tensor_type(name, tensor, kind)
        writer.add_tensor(name, quantize(_to_numpy(tensor), tensor_type), raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _verify(tensors, directory / GGUF_FILE)
    return f"a language model of the architecture {arch.name!r} in {dtype}"


def gguf_tensors(model: Any, arch: GgufArch) -> dict[str, Tensor]:
    """Return the weights of a model under the names of llama.cpp."""
    config = model.config
    tensors = to_hf(arch.weight_map, named_state(model), config)
    if config.norm.options.get("zero_centered"):
        tensors |= {name: x + 1 for name, x in tensors.items() if name.endswith("norm.weight")}
    if arch.needs_biases:
        rows = {name: len(x) for name, x in tensors.items() if name.startswith("blk.") or "norm" in name}
        for name, count in rows.items():
            tensors.setdefault(name.replace(".weight", ".bias"), torch.zeros(count))
    if arch.output_head == "must" and "output.weight" not in tensors:
        tensors["output.weight"] = tensors["token_embd.weight"]
    if (factors := rope_freq_factors(config)) is not None:
        tensors["rope_freqs.weight"] = factors
    return tensors


def _tensor_type(name: str, tensor: Tensor, kind: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    """Return the type of a tensor: fp32 for vectors, fp16 for rows that are not a multiple of a quantization
    block.
    """
    if tensor.dim() < 2 or name in _FP32_TENSORS:
        return _GGML_TYPE.F32
    if kind not in (_GGML_TYPE.Q8_0, _GGML_TYPE.Q4_0):
        return kind
    if tensor.size(-1) % _QUANT_BLOCK:
        return _GGML_TYPE.F16
    return _GGML_TYPE.Q8_0 if name in _INT8_TENSORS else kind


def _to_numpy(tensor: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _template_metadata(run: Run) -> dict[str, Any]:
    """Return the metadata of the token before a prompt and of the chat template."""
    template = run.prompt_template
    prefix_ids = template.prefix_ids if template.always_add_prefix else []
    if len(prefix_ids) > 1:
        raise UserError(f"llama.cpp adds one token before a text; this model has {len(prefix_ids)}")
    metadata: dict[str, Any] = {
        "tokenizer.ggml.add_bos_token": bool(prefix_ids),
        "tokenizer.ggml.add_eos_token": False,
    }
    if prefix_ids:
        metadata["tokenizer.ggml.bos_token_id"] = prefix_ids[0]
    if run.generation.chat:
        metadata["tokenizer.chat_template"] = build_template(run.generation.chat)
    if run.generation.chat or run.generation.stop_tokens:
        metadata["tokenizer.ggml.eot_token_id"] = all_eos_ids(run.generation, run.tokenizer)[:2][-1]
    return metadata


def _sampling_metadata(run: Run) -> dict[str, Any]:
    """Return the default sampling settings."""
    settings = run.generation
    # the format has one additional end token
    unsupported = (
        ["stop_tokens"] if settings.stop_tokens and len(all_eos_ids(settings, run.tokenizer)) > 2 else []
    )
    warn_unsupported_settings(
        settings, (*UNSUPPORTED_SETTINGS, "logit_bias", "no_repeat_ngram_size", *unsupported), GGUF_FILE
    )
    return {
        "general.sampling.temp": settings.temperature,
        "general.sampling.top_k": settings.top_k,
        "general.sampling.top_p": settings.top_p,
        "general.sampling.min_p": settings.min_p,
        "general.sampling.penalty_repeat": settings.repetition_penalty,
    }


def _add_metadata(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            (writer.add_int32 if key.endswith("top_k") else writer.add_uint32)(key, value)


def _verify(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Read the file and compare it with the tensors; a UserError if they differ."""
    tensors_in_file = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, tensor in tensors.items():
        values = torch.from_numpy(
            np.array(dequantize(tensors_in_file[name].data, tensors_in_file[name].tensor_type))
        )
        error = (values.reshape(tensor.shape) - tensor.float().cpu()).abs().max()
        if not error <= _TOLERANCES[tensors_in_file[name].tensor_type] * tensor.abs().max():
            raise UserError(f"{path.name} differs from this model: {name} is off by {error:.2g}")
