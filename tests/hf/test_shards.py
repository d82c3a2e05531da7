import json

import pytest
import torch
from safetensors.torch import load_file
from tests.hf.conftest import make
from transformers import AutoModelForCausalLM

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.hf.save import build_index, parse_size, split_shards


def test_sizes_are_parsed():
    sizes = {"5GB": 5 * 10**9, "500MB": 5 * 10**8, "1.5kb": 1500, "2GiB": 1 << 31, " 3 MiB ": 3 << 20}
    for text, size in (sizes | {"1TB": 10**12}).items():
        assert parse_size(text) == size, text
    for text in ("", "5", "GB", "-1GB", "0GB", "0.0001KB", "2 gigabytes", "1e3GB"):
        with pytest.raises(UserError, match="is not a number above 0 with a unit, one of KB, MB, GB"):
            parse_size(text)
    # 4 bytes a number
    tensors = {name: torch.zeros(n) for name, n in zip("abcdef", (3, 4, 3, 20, 1, 9), strict=True)}
    parts = split_shards(tensors, 40)
    assert [list(part) for part in parts.values()] == [["a", "b", "c"], ["d"], ["e", "f"]]
    assert list(parts) == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert next(iter(split_shards(tensors, 39))) == "model-00001-of-00005.safetensors"
    index = build_index(parts)
    assert index["metadata"] == {"total_size": 160}
    assert index["weight_map"]["d"] == "model-00002-of-00003.safetensors"
    assert split_shards(tensors, 160) == {"model.safetensors": tensors}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_sharded_export_keeps_every_tensor(dtype, tmp_path):
    checkpoint, run_dir, exported_dir = (tmp_path / name for name in ("checkpoint", "run", "exported"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    reference = make(checkpoint, "GPTNeoXConfig", dtype=torch_dtype, max_position_embeddings=64, **sizes)
    assert main(["import", str(checkpoint), str(run_dir)]) == 0
    options = ["--dtype", dtype, "--shard-size", "20KB"]
    assert main(["export", str(run_dir), str(exported_dir), *options]) == 0
    files = sorted(exported_dir.glob("*.safetensors"))
    assert len(files) > 2
    index = json.loads((exported_dir / "model.safetensors.index.json").read_text())
    expected, actual = load_file(checkpoint / "model.safetensors"), {}
    for file in files:
        part = load_file(file)
        assert sum(t.nbytes for t in part.values()) <= 20_000 or len(part) == 1
        assert all(index["weight_map"][key] == file.name for key in part)
        actual |= part
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in expected.values())
    assert actual.keys() == expected.keys() == index["weight_map"].keys()
    for key, tensor in expected.items():
        assert torch.equal(actual[key].view(torch.uint8), tensor.view(torch.uint8)), key
    exported_model, info = AutoModelForCausalLM.from_pretrained(
        exported_dir, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    tokens = torch.randint(5, 300, (2, 9))
    with torch.no_grad():
        assert torch.equal(exported_model.eval()(tokens).logits, reference(tokens).logits)
        first, second = (ph.load(directory).model(tokens) for directory in (exported_dir, run_dir))
        assert torch.equal(first, second)


def test_interrupted_export_is_removed(gpt2, tmp_path, monkeypatch):
    assert main(["import", str(gpt2), str(tmp_path / "run")]) == 0
    entries, written_names = set(tmp_path.iterdir()), set[str]()

    def interrupt(parts):
        (directory,) = set(tmp_path.iterdir()) - entries
        written_names.update(path.name for path in directory.iterdir())
        raise KeyboardInterrupt

    command = ["export", str(tmp_path / "run"), str(tmp_path / "exported"), "--shard-size", "9KB"]
    with monkeypatch.context() as patches:
        patches.setattr("polyhead.hf.save.build_index", interrupt)
        assert main(command) != 0
    assert {"config.json", "tokenizer.json"} < written_names and set(tmp_path.iterdir()) == entries
    (tmp_path / "exported").mkdir()  # an empty directory may be there
    (tmp_path / ".exported.tmp-4194305").mkdir()  # and what an interrupted machine has left
    assert main(command) == 0 and set(tmp_path.iterdir()) == entries | {tmp_path / "exported"}
    assert len(list((tmp_path / "exported").glob("model-*-of-*.safetensors"))) > 2
