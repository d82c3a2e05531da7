"""A published language model that is trained on: texts begin for it as it has learned, in training, use and
export.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.hf.conftest import TEXTS, make
from tests.train.conftest import Notes
from transformers import AutoTokenizer

import polyhead as ph
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.data.readers.plain_text import open_text
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.run_training import run_training

LLAMA = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path) -> torch.nn.Module:
    """Its tokenizer puts <s> before a text."""
    model = make(tmp_path / "a", "LlamaConfig", **LLAMA)
    tokenizer = Tokenizer.load(tmp_path / "a")
    tokenizer.with_template([tokenizer.bos_id], []).save(tmp_path / "a")
    (tmp_path / "train.txt").write_text("".join(f"{text}\n" for text in TEXTS * 20))
    (tmp_path / "valid.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return model


@pytest.mark.parametrize("documents", ["line", "file"])
def test_texts_begin_as_the_model_has_learned(documents: str, llama: torch.nn.Module, tmp_path: Path) -> None:
    """Against the loss of the reference on each text behind <s>, its end included where texts have one."""
    data = {
        "train": str(tmp_path / "train.txt"),
        "valid": str(tmp_path / "valid.txt"),
        "document_separator": documents,
        "max_len": 64,
    }
    given = {
        "task": "language-model",
        "init_from": str(tmp_path / "a"),
        "data": data,
        "out": tmp_path / "run",
    }
    train = {"steps": 1, "lr": 1e-12, "max_tokens": 128, "schedule": "constant", "precision": "fp32"}
    notes = Notes()
    run, _ = run_training(Recipe.model_validate(given | {"train": train}), report=notes)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    if documents == "line":
        nll, asked = 0.0, 0
        for text in TEXTS:
            ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
            assert ids[0, 0] == tokenizer.bos_token_id
            with torch.no_grad():
                nll += float(llama(ids, labels=ids).loss) * (ids.size(1) - 1)
            asked += ids.size(1) - 1
        assert notes.series("loss", "valid")[-1] == pytest.approx(nll / asked, rel=1e-4)
        scores = [score.log_prob for score in run.score(TEXTS)]
        assert -sum(scores) == pytest.approx(nll, rel=1e-4)
    prompts = ["the king", "a dog"]
    wanted = ph.load(tmp_path / "a").generate(prompts, temperature=0, max_new_tokens=12)
    assert run.generate(prompts, temperature=0, max_new_tokens=12) == wanted
    assert ph.load(tmp_path / "run").generate(prompts, temperature=0, max_new_tokens=12) == wanted
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    again = AutoTokenizer.from_pretrained(tmp_path / "b")
    assert again("the king")["input_ids"] == tokenizer("the king")["input_ids"]


def test_a_published_model_is_measured_behind_its_beginning(llama: torch.nn.Module, tmp_path: Path) -> None:
    text = " ".join(TEXTS)[:60]
    (tmp_path / "whole.txt").write_text(text)
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "a")(text)["input_ids"]])
    with torch.no_grad():
        loss = float(llama(ids, labels=ids).loss)
    run = ph.load(tmp_path / "a")
    found = run.measure_perplexity(open_text([tmp_path / "whole.txt"], "file"))
    assert found.tokens == ids.size(1) - 1
    assert found.loss == pytest.approx(loss, rel=1e-4)
