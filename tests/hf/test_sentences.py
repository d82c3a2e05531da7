"""How a text's vector is made, as sentence-transformers says it, against its formulas on the reference's encoder."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS, make

import polyhead as ph
from polyhead.cli import main
from polyhead.errors import UserError
from polyhead.text.tokenizer import Tokenizer

BERT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20, "max_position_embeddings": 64,
}  # fmt: skip
OLD = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
POOLS = {"cls": lambda x: x[0], "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}


def folder(directory: Path, pooling: dict[str, Any], *more: str) -> Any:
    """A small BERT with the files of sentence-transformers as versions 2 to 5 wrote them."""
    model = make(directory, "BertConfig", auto="AutoModel", **BERT)
    tokenizer = Tokenizer.load(directory)
    tokenizer.framed([tokenizer.bos_id], [tokenizer.eos_id]).save(directory, segments=True)
    names = ["Transformer", "Pooling", *more]
    steps = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name}" if i else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(names)
    ]
    (directory / "modules.json").write_text(json.dumps(steps))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 16, **pooling})
    )
    return model


def wanted(model: Any, directory: Path, mode: str, normalized: bool) -> torch.Tensor:
    tokenizer, rows = transformers.AutoTokenizer.from_pretrained(directory), []
    for text in TEXTS:
        with torch.no_grad():
            rows.append(POOLS[mode](model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]))
    found = torch.stack(rows)
    return found / found.norm(dim=1, keepdim=True) if normalized else found


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("written", ["old", "new"])
@pytest.mark.parametrize("mode", POOLS)
def test_vectors_are_made_as_the_checkpoint_says(
    mode: str, written: str, normalized: bool, tmp_path: Path
) -> None:
    said = {"pooling_mode": mode} if written == "new" else {key: name == mode for name, key in OLD.items()}
    model = folder(tmp_path / "a", said, *["Normalize"] * normalized)
    vectors = wanted(model, tmp_path / "a", mode, normalized)
    torch.testing.assert_close(ph.load(tmp_path / "a").embed(TEXTS), vectors, rtol=1e-5, atol=1e-5)

    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    again = ph.load(tmp_path / "b")
    torch.testing.assert_close(again.embed(TEXTS), vectors, rtol=1e-5, atol=1e-5)
    kinds = [
        step["type"].rsplit(".")[-1] for step in json.loads((tmp_path / "b" / "modules.json").read_text())
    ]
    assert kinds == ["Transformer", "Pooling", *["Normalize"] * normalized]
    config = json.loads((tmp_path / "b" / "1_Pooling" / "config.json").read_text())
    assert config == {"word_embedding_dimension": 16, **{key: name == mode for name, key in OLD.items()}}
    lengths = json.loads((tmp_path / "b" / "sentence_bert_config.json").read_text())
    assert lengths["max_seq_length"] == BERT["max_position_embeddings"]


def test_an_encoder_with_a_head_is_exported_for_that(tmp_path: Path) -> None:
    make(tmp_path / "a", "BertConfig", auto="AutoModelForMaskedLM", **BERT)
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "hf"]) == 0
    assert not (tmp_path / "b" / "modules.json").exists()


def test_what_is_asked_for_goes_before_what_the_run_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder(tmp_path, {"pooling_mode": "cls"}, "Normalize")
    run = ph.load(tmp_path)
    plain = wanted(model, tmp_path, "max", False)
    torch.testing.assert_close(run.embed(TEXTS, pooling="max", normalize=False), plain, rtol=1e-5, atol=1e-5)
    assert main(["embed", str(tmp_path), TEXTS[0], "--pooling", "max", "--no-normalize"]) == 0
    printed = [float(value) for value in capsys.readouterr().out.split("\t")]
    assert printed == pytest.approx(plain[0].tolist(), abs=1e-4)
    with pytest.raises(
        UserError, match="temperature has no effect on vectors of texts; these have: normalize, pooling"
    ):
        run.embed(TEXTS, temperature=1.0)


@pytest.mark.parametrize(
    ("pooling", "more", "said"),
    [
        (
            {"pooling_mode": "lasttoken"},
            [],
            "pooling is ['lasttoken'], and here the mean; built are cls, mean, max",
        ),
        ({OLD["cls"]: True, OLD["max"]: True}, [], "pooling is ['cls', 'max'], and here the mean"),
        (
            {"pooling_mode_weightedmean_tokens": True},
            [],
            "edmean_tokens'], and here the mean",
        ),
        ({"pooling_mode": "mean"}, ["Dense"], "vectors of texts go through Dense there, and without it here"),
    ],
)
def test_what_is_not_built_is_warned_of(
    pooling: dict[str, Any], more: list[str], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder(tmp_path, pooling, *more)
    with caplog.at_level(logging.WARNING):
        assert ph.load(tmp_path).generation.pooling == "mean"
    (warned,) = [record.getMessage() for record in caplog.records]
    assert said in warned


@pytest.mark.acceptance("F6")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "modules.json must hold a list of objects"),
        ("[1]", "modules.json must hold a list of objects"),
        ("[", "modules.json is not valid JSON"),
        ('[{"type": "a.Pooling", "path": "../other"}]', "is a link out of the checkpoint"),
        ('[{"type": "a.Pooling", "path": "/etc"}]', None),
        ('[{"type": "a.Pooling", "path": 5}]', None),
    ],
)
def test_damaged_files_are_told_and_nothing_outside_is_read(
    content: str, message: str | None, tmp_path: Path
) -> None:
    folder(tmp_path / "a", {"pooling_mode": "cls"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"pooling_mode": "max"}')
    (tmp_path / "a" / "modules.json").write_text(content)
    if message is None:
        assert ph.load(tmp_path / "a").generation.pooling == "mean"
        return
    with pytest.raises(UserError, match=message):
        ph.load(tmp_path / "a")
