"""Write tensors to a safetensors file one at a time, and read them from verified bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from torch import Tensor

from polyhead.core.atomic_io import HashingWriter
from polyhead.core.errors import UserError

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library

SAFETENSORS_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def make_header(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, list[str]]:
    """The file header and the tensor names in the order of their data.

    A tensor that shares its memory with an earlier one (tied embeddings) is written once; the metadata then
    map its name to the earlier one, as in ``safetensors.torch.save_model``.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    first: dict[object, str] = {}
    aliases: dict[str, str] = {}
    entries: dict[str, object] = {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in SAFETENSORS_DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            raise UserError(
                f"cannot save {name!r}: a {tensor.dtype} {tensor.layout} tensor on {tensor.device}; "
                f"dense tensors with data of {', '.join(map(str, SAFETENSORS_DTYPES))} can be saved"
            )
        storage_key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        first_name = first.setdefault(storage_key, name) if tensor.numel() else name
        if first_name != name:
            aliases[name] = first_name
            continue
        end = offset + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    all_metadata = {**(metadata or {}), **aliases}
    text = json.dumps(
        ({"__metadata__": all_metadata} if all_metadata else {}) | entries, separators=(",", ":")
    ).encode()
    text += b" " * (-len(text) % 8)  # aligns the data
    return len(text).to_bytes(8, "little") + text, list(entries)


def count_file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size in bytes of the file that ``write_safetensors`` writes."""
    head, names = make_header(tensors)
    return len(head) + sum(tensors[name].numel() * tensors[name].element_size() for name in names)


def write_safetensors(
    out: HashingWriter, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the tensors as a stream; any device and any strides."""
    head, names = make_header(tensors, metadata)
    out.write(head)
    for name in names:
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        out.write(flat.view(torch.uint8).numpy().data)


def read_safetensors(data: bytes, source: object) -> dict[str, Tensor]:
    """Parse the bytes of a safetensors file to tensors on the CPU. ``source`` names the file in errors."""
    try:
        length = int.from_bytes(data[:8], "little")
        if length > min(MAX_HEADER_BYTES, len(data) - 8):
            raise UserError(
                f"{source} declares a header of {length} bytes; at most "
                f"{min(MAX_HEADER_BYTES, len(data) - 8)} fit"
            )
        aliases = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        tensors: dict[str, Tensor] = parse(data)
        return tensors | {name: tensors[target] for name, target in aliases.items() if target in tensors}
    except UserError:
        raise
    except (SafetensorError, ValueError, TypeError, RecursionError, AttributeError) as error:
        raise UserError(f"{source} is not a safetensors file: {error}") from error


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: object) -> None:
    """Raise a UserError for tensors that differ from the expected ones in name, shape or dtype."""
    problems = [f"{name!r} is missing" for name in sorted(expected.keys() - tensors.keys())]
    problems += [f"{name!r} is unexpected" for name in sorted(tensors.keys() - expected.keys())]
    for name in sorted(tensors.keys() & expected.keys()):
        actual, reference = tensors[name], expected[name]
        if (actual.shape, actual.dtype) != (reference.shape, reference.dtype):
            problems.append(
                f"{name!r} is {actual.dtype} {list(actual.shape)}, expected {reference.dtype} "
                f"{list(reference.shape)}"
            )
    if problems:
        remainder = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UserError(f"{source} does not match: {'; '.join(problems[:5])}{remainder}")
