"""Weights in several files: none too large, opened by the reference, whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.hf.conftest import make
from transformers import AutoModelForCausalLM

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.hf.shards import build_index, parse_size, split_shards


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5GB", 5 * 10**9),
        ("500MB", 5 * 10**8),
        ("1.5kb", 1500),
        ("2GiB", 1 << 31),
        (" 3 MiB ", 3 << 20),
        ("1TB", 10**12),
    ],
)
def test_sizes_are_read(text: str, wanted: int) -> None:
    assert parse_size(text) == wanted


@pytest.mark.parametrize("text", ["", "5", "GB", "-1GB", "0GB", "0.0001KB", "2 gigabytes", "1e3GB"])
def test_what_is_no_size_is_a_user_error(text: str) -> None:
    with pytest.raises(UserError, match="is not a number above 0 with a unit, one of KB, MB, GB"):
        parse_size(text)


def test_files_are_filled_in_order_up_to_the_size() -> None:
    # 4 bytes a number
    tensors = {name: torch.zeros(n) for name, n in zip("abcdef", (3, 4, 3, 20, 1, 9), strict=True)}
    parts = split_shards(tensors, 40)
    assert [list(part) for part in parts.values()] == [["a", "b", "c"], ["d"], ["e", "f"]]
    assert list(parts) == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert next(iter(split_shards(tensors, 39))) == "model-00001-of-00005.safetensors"
    assert build_index(parts)["metadata"] == {"total_size": 160}
    assert build_index(parts)["weight_map"]["d"] == "model-00002-of-00003.safetensors"
    assert split_shards(tensors, 160) == {"model.safetensors": tensors}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_export_in_several_files_holds_the_same_tensors(dtype: str, tmp_path: Path) -> None:
    name = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    theirs = make(tmp_path / "a", "GPTNeoXConfig", dtype=name, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4,
                  intermediate_size=20, max_position_embeddings=64)  # fmt: skip
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert (
        main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--dtype", dtype, "--shard-size", "20KB"])
        == 0
    )
    files = sorted((tmp_path / "b").glob("*.safetensors"))
    assert len(files) > 2
    index, before = (
        json.loads((tmp_path / "b/model.safetensors.index.json").read_text()),
        load_file(tmp_path / "a/model.safetensors"),
    )
    after = {}
    for file in files:
        part = load_file(file)
        assert sum(t.nbytes for t in part.values()) <= 20_000 or len(part) == 1
        assert all(index["weight_map"][key] == file.name for key in part)
        after |= part
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in before.values())
    assert after.keys() == before.keys() == index["weight_map"].keys()
    assert all(
        torch.equal(after[key].view(torch.uint8), tensor.view(torch.uint8)) for key, tensor in before.items()
    )
    again, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "b", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    tokens = torch.randint(5, 300, (2, 9))
    with torch.no_grad():
        assert torch.equal(again.eval()(tokens).logits, theirs(tokens).logits)
        torch.testing.assert_close(
            ph.load(tmp_path / "b").model(tokens), ph.load(tmp_path / "run").model(tokens), rtol=0, atol=0
        )


def test_an_export_that_is_interrupted_leaves_nothing(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["import", str(gpt2), str(tmp_path / "run")]) == 0
    before = set(tmp_path.iterdir())
    seen: list[str] = []

    def interrupted(parts: object) -> None:
        (place,) = set(tmp_path.iterdir()) - before
        seen.extend(path.name for path in place.iterdir())
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("polyhead.hf.shards.build_index", interrupted)
        arguments = ["export", str(tmp_path / "run"), str(tmp_path / "b"), "--shard-size", "9KB"]
        assert main(arguments) != 0
    assert {"config.json", "tokenizer.json"} < set(seen)
    assert set(tmp_path.iterdir()) == before
    (tmp_path / "b").mkdir()  # an empty one is no hindrance
    (tmp_path / ".b.tmp-4194305").mkdir()  # nor what a machine that went down has left
    assert main(arguments) == 0
    assert set(tmp_path.iterdir()) == before | {tmp_path / "b"}
    assert len(list((tmp_path / "b").glob("model-*-of-*.safetensors"))) > 2


def test_a_size_that_is_none_is_one_line(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(gpt2), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--shard-size", "much"]) == 2
    assert capsys.readouterr().err.startswith(
        "polyhead: the size 'much' is not a number above 0 with a unit, one of KB"
    )
    assert not (tmp_path / "b").exists()
