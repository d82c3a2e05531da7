"""Tensors to a safetensors file as a stream, one at a time in memory, and back from verified bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from torch import Tensor

from polyhead.errors import UserError
from polyhead.files import Writer

MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors library

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def header(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, list[str]]:
    """The head of the file and the names in the order of their data.

    A tensor that is the very same memory as an earlier one (tied embeddings) is written once; the metadata
    have {its name: the earlier name} besides, as those of ``safetensors.torch.save_model``.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    first: dict[object, str] = {}
    aliases: dict[str, str] = {}
    entries: dict[str, object] = {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            raise UserError(
                f"cannot save {name!r}: a {tensor.dtype} {tensor.layout} tensor on {tensor.device}; "
                f"dense tensors with data of {', '.join(map(str, DTYPES))} can be saved"
            )
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        kept = first.setdefault(place, name) if tensor.numel() else name
        if kept != name:
            aliases[name] = kept
            continue
        end = offset + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    told = {**(metadata or {}), **aliases}
    text = json.dumps(({"__metadata__": told} if told else {}) | entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data are aligned
    return len(text).to_bytes(8, "little") + text, list(entries)


def nbytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the file that ``write`` makes."""
    head, names = header(tensors)
    return len(head) + sum(tensors[name].numel() * tensors[name].element_size() for name in names)


def write(out: Writer, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Stream the tensors; any device and any strides."""
    head, names = header(tensors, metadata)
    out.write(head)
    for name in names:
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        out.write(flat.view(torch.uint8).numpy().data)


def read(data: bytes, where: object) -> dict[str, Tensor]:
    """The tensors of a file's bytes, on the CPU. ``where`` names the file in errors."""
    try:
        length = int.from_bytes(data[:8], "little")
        if length > min(MAX_HEADER, len(data) - 8):
            raise UserError(
                f"{where} announces a header of {length} bytes; at most {min(MAX_HEADER, len(data) - 8)} fit"
            )
        aliases = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        tensors: dict[str, Tensor] = parse(data)
        return tensors | {name: tensors[kept] for name, kept in aliases.items() if kept in tensors}
    except UserError:
        raise
    except (SafetensorError, ValueError, TypeError, RecursionError, AttributeError) as error:
        raise UserError(f"{where} is not a safetensors file: {error}") from error


def expect(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: object) -> None:
    """Refuse tensors that differ from those wanted in a name, a shape or a dtype, saying which."""
    wrong = [f"{name!r} is missing" for name in sorted(wanted.keys() - found.keys())]
    wrong += [f"{name!r} is not wanted" for name in sorted(found.keys() - wanted.keys())]
    for name in sorted(found.keys() & wanted.keys()):
        came, want = found[name], wanted[name]
        if (came.shape, came.dtype) != (want.shape, want.dtype):
            wrong.append(
                f"{name!r} is {came.dtype} {list(came.shape)}, wanted {want.dtype} {list(want.shape)}"
            )
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise UserError(f"{where} does not fit: {'; '.join(wrong[:5])}{more}")
