import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from polyhead.checkpoint.checkpoint import (
    CheckpointDraft,
    open_lazy_checkpoint,
    read_checkpoint,
    read_newest_checkpoint,
    save_checkpoint,
)
from polyhead.checkpoint.manifest import hash_file
from polyhead.checkpoint.safetensors_io import LazyTensors
from polyhead.core.errors import UserError

MATRIX = torch.arange(35.0).reshape(7, 5)
PARTS = [{"w": ((0, 0), MATRIX[:4]), "s": ((), torch.tensor(3))}, {"w": ((4, 0), MATRIX[4:, :2])}]
PARTS += [{"w": ((4, 2), MATRIX[4:, 2:]), "b": ((0,), torch.tensor([1.5, 2.5], dtype=torch.bfloat16))}]


def write_parts(directory, parts):
    """Files as torch's HuggingFaceStorageWriter names and writes them."""
    directory.mkdir(exist_ok=True)
    paths = []
    for i, tensors in enumerate(parts, 1):
        paths.append(directory / f"shard-{i:05}-model-00001-of-00001.safetensors")
        offsets = {name: {"saved_offsets": offset} for name, (offset, _) in tensors.items()}
        metadata = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
        save_file({name: part.contiguous() for name, (_, part) in tensors.items()}, paths[-1], metadata)
    return paths


def test_parts_are_joined_and_damage_is_refused(tmp_path):
    paths = write_parts(tmp_path, PARTS)
    tensors = LazyTensors(paths)
    specs = {"w": (torch.float32, (7, 5)), "s": (torch.int64, ()), "b": (torch.bfloat16, (2,))}
    assert tensors.specs == specs
    assert len(tensors) == 3 and list(tensors) == list(tensors.specs)
    assert torch.equal(tensors["w"], MATRIX) and int(tensors["s"]) == 3
    assert tensors["b"].dtype is torch.bfloat16 and tensors["b"].tolist() == [1.5, 2.5]
    with pytest.raises(UserError, match=r"does not have all parts of 'w'"):
        LazyTensors([paths[0], paths[2]])
    path = tmp_path / "x.safetensors"

    def write(header, n_bytes):
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(n_bytes))

    for header in (b"no json", *(json.dumps(header).encode() for header in HEADERS)):
        write(header, 8)
        with pytest.raises(UserError, match=r"x\.safetensors is not a safetensors file"):
            LazyTensors([path])
    path.write_bytes(struct.pack("<Q", 2**60))
    with pytest.raises(UserError, match=r"declares a header of \d+ bytes"):
        LazyTensors([path])
    write(json.dumps({"w": ENTRY}).encode(), 7)
    with pytest.raises(UserError, match="it ends within a tensor"):
        LazyTensors([path])["w"]
    table = torch.randn(4, 3)
    content = {"w": table, "tied": table, "half": torch.randn(2).half(), "none": torch.empty(0, 3)}
    content["flag"] = torch.tensor([True, False])
    path = save_checkpoint(tmp_path, 1, {"model": content}, {"note": 1}, extra={"x": "y"})
    lazy, checkpoint = open_lazy_checkpoint(path), read_checkpoint(path)
    assert lazy._replace(tensors={}) == checkpoint._replace(tensors={})
    assert lazy.tensors["model"].keys() == checkpoint.tensors["model"].keys() == content.keys()
    assert all(torch.equal(tensor, content[name]) for name, tensor in lazy.tensors["model"].items())


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


HEADERS = ([1], {"w": {**ENTRY, "dtype": "F3"}}, {"w": {**ENTRY, "shape": [3]}}, {"w": {"dtype": "F32"}})


def save_in_parts(root, step):
    draft = CheckpointDraft(root, step, 0)
    directory = draft.create()
    for path in write_parts(directory / "model", PARTS):
        draft.files[path.relative_to(directory).as_posix()] = hash_file(path)
    return draft.commit(b"{}", {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), "is damaged: its SHA-256"),
        (lambda path: path.unlink(), "differs from its manifest: missing"),
        (lambda path: (path.parent / "more").write_bytes(b""), "not listed ['model/more']"),
        (lambda path: path.rename(path.parent.parent / path.name), "differs from its manifest"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes; expected"),
        (lambda path: (path.parent.parent / "empty").mkdir(), "not listed ['empty']"),
    ],
)
@pytest.mark.parametrize("read", [read_checkpoint, open_lazy_checkpoint])
def test_damaged_part_is_detected(read, change, message, tmp_path):
    assert torch.equal(read(save_in_parts(tmp_path, 1)).tensors["model"]["w"], MATRIX)
    path = save_in_parts(tmp_path, 2)
    change(path / "model" / "shard-00002-model-00001-of-00001.safetensors")
    with pytest.raises(UserError) as error:
        read(path)
    assert message in str(error.value)
    newest = read_newest_checkpoint(tmp_path, read=read)
    assert newest and newest.step == 1
