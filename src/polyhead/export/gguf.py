"""A language model in one file of GGUF, the format of llama.cpp and of what is built on it (Ollama, LM Studio)."""

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

from polyhead.errors import UserError, unknown
from polyhead.export.gguf_archs import Arch
from polyhead.export.gguf_keys import keys_of, slower
from polyhead.export.gguf_limits import arch_of
from polyhead.export.gguf_vocabulary import vocabulary
from polyhead.generate.frame import frame
from polyhead.hf.generation import UNSAID, left_out
from polyhead.hf.table import joined
from polyhead.hf.writing import all_ends
from polyhead.nn.weights import weights
from polyhead.run import Run
from polyhead.text.chat.recognise import template_of

FILE = "model.gguf"
KIND = gguf.GGMLQuantizationType
# what matrices are, and what a whole file of them is called there
DTYPES = {
    "fp32": (KIND.F32, gguf.LlamaFileType.ALL_F32),
    "fp16": (KIND.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (KIND.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "int8": (KIND.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "int4": (KIND.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
# how far off a number may be, of the largest of its tensor
CLOSE = {KIND.F32: 0.0, KIND.F16: 2**-10, KIND.BF16: 2**-7, KIND.Q8_0: 2**-7, KIND.Q4_0: 2**-3 + 2**-10}
BLOCK = 32  # numbers of a row that share a factor in int8 and int4
WHOLE = ("position_embd.weight",)  # matrices that llama.cpp adds, and wants in fp32
# of tokens, which have 8 bits where the others have 4, as in our own int4
ENDS = ("token_embd.weight", "output.weight")


def check(run: Run, dtype: str) -> None:
    """A UserError names what llama.cpp has no words for, or a dtype that is none."""
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    arch_of(run.model.config)
    vocabulary(run.tokenizer, run.model.config.vocab_size)
    _around(run)


@torch.no_grad()
def write(run: Run, directory: Path, dtype: str = "fp32") -> str:
    """Write model.gguf into a directory, and read it again; what was written, in a few words."""
    check(run, dtype)
    arch, config = arch_of(run.model.config)
    kind, file_type = DTYPES[dtype]
    writer = gguf.GGUFWriter(directory / FILE, arch.name)
    writer.add_file_type(file_type)
    _put(writer, {f"{arch.name}.{key}": value for key, value in keys_of(config, arch).items()})
    _put(writer, vocabulary(run.tokenizer, config.vocab_size) | _around(run) | _sampling(run))
    tensors = named(run.model, arch)
    for name, tensor in tensors.items():
        held = _kind(name, tensor, kind)
        writer.add_tensor(name, quantize(_array(tensor), held), raw_dtype=held)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _prove(tensors, directory / FILE)
    return f"a language model of the architecture {arch.name!r} in {dtype}"


def named(model: Any, arch: Arch) -> dict[str, Tensor]:
    """The weights of a model under the names of llama.cpp."""
    config = model.config
    found = joined(arch.table, weights(model), config)
    if config.norm.options.get("around_one"):
        found |= {name: x + 1 for name, x in found.items() if name.endswith("norm.weight")}
    if arch.zeros:
        rows = {name: len(x) for name, x in found.items() if name.startswith("blk.") or "norm" in name}
        for name, count in rows.items():
            found.setdefault(name.replace(".weight", ".bias"), torch.zeros(count))
    if arch.output == "must" and "output.weight" not in found:
        found["output.weight"] = found["token_embd.weight"]
    if (rates := slower(config)) is not None:
        found["rope_freqs.weight"] = rates
    return found


def _kind(name: str, tensor: Tensor, kind: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    """What a tensor is written as: vectors are not rounded, and rows that do not come in blocks are halved."""
    if tensor.dim() < 2 or name in WHOLE:
        return KIND.F32
    if kind not in (KIND.Q8_0, KIND.Q4_0):
        return kind
    if tensor.size(-1) % BLOCK:
        return KIND.F16
    return KIND.Q8_0 if name in ENDS else kind


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _around(run: Run) -> dict[str, Any]:
    """What stands before a prompt, and how the model converses."""
    about = frame(run.recipe, run.tokenizer)
    begin = about.begin if about.always else []
    if len(begin) > 1:
        raise UserError(f"llama.cpp puts one token before a text; this model has {len(begin)}")
    found: dict[str, Any] = {
        "tokenizer.ggml.add_bos_token": bool(begin),
        "tokenizer.ggml.add_eos_token": False,
    }
    if begin:
        found["tokenizer.ggml.bos_token_id"] = begin[0]
    if run.generation.chat:
        found["tokenizer.chat_template"] = template_of(run.generation.chat)
    if run.generation.chat or run.generation.ends:
        found["tokenizer.ggml.eot_token_id"] = all_ends(run.generation, run.tokenizer)[:2][-1]
    return found


def _sampling(run: Run) -> dict[str, Any]:
    """How it decodes if nobody says otherwise."""
    settings = run.generation
    # there are words for one end beside the end of a text
    ends = ["ends"] if settings.ends and len(all_ends(settings, run.tokenizer)) > 2 else []
    left_out(settings, (*UNSAID, "logit_bias", "no_repeat_ngram_size", *ends), FILE)
    return {
        "general.sampling.temp": settings.temperature,
        "general.sampling.top_k": settings.top_k,
        "general.sampling.top_p": settings.top_p,
        "general.sampling.min_p": settings.min_p,
        "general.sampling.penalty_repeat": settings.repetition_penalty,
    }


def _put(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
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


def _prove(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Read what was written; a UserError where it is anything else than the model."""
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, tensor in tensors.items():
        found = torch.from_numpy(np.array(dequantize(read[name].data, read[name].tensor_type)))
        off = (found.reshape(tensor.shape) - tensor.float().cpu()).abs().max()
        if not off <= CLOSE[read[name].tensor_type] * tensor.abs().max():
            raise UserError(f"{path.name} holds something else than this model: {name} is off by {off:.2g}")
