import pytest
import torch
from tests.hf.conftest import TEXTS, make
from tests.hf.families.causal_cases import LLAMA
from tests.train.conftest import Notes
from transformers import AutoTokenizer

import polyhead as ph
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.data.readers.plain_text import open_text
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.run_training import run_training


@pytest.fixture
def llama(tmp_path):
    model = make(tmp_path / "checkpoint", "LlamaConfig", **LLAMA)
    tokenizer = Tokenizer.load(tmp_path / "checkpoint")
    tokenizer.with_template([tokenizer.bos_id], []).save(tmp_path / "checkpoint")
    (tmp_path / "train.txt").write_text("".join(f"{text}\n" for text in TEXTS * 20))
    (tmp_path / "valid.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return model


@pytest.mark.parametrize("separator", ["line", "file"])
def test_training_and_generation_start_with_bos(separator, llama, tmp_path):
    """Losses are those of the reference on <s> and the text, with the end where texts have one."""
    checkpoint, run_dir, exported_dir = (tmp_path / name for name in ("checkpoint", "run", "exported"))
    files = {split: str(tmp_path / f"{split}.txt") for split in ("train", "valid")}
    recipe = {"task": "language-model", "init_from": str(checkpoint), "out": run_dir}
    recipe |= {"data": {**files, "document_separator": separator, "max_len": 64}}
    train = {"steps": 1, "lr": 1e-12, "max_tokens": 128, "schedule": "constant", "precision": "fp32"}
    recipe |= {"train": train}
    notes = Notes()
    run, _ = run_training(Recipe.model_validate(recipe), report=notes)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    if separator == "line":
        nll, n_tokens = 0.0, 0
        for text in TEXTS:
            ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
            assert ids[0, 0] == tokenizer.bos_token_id
            with torch.no_grad():
                nll += float(llama(ids, labels=ids).loss) * (ids.size(1) - 1)
            n_tokens += ids.size(1) - 1
        assert notes.series("loss", "valid")[-1] == pytest.approx(nll / n_tokens, rel=1e-4)
        assert -sum(score.log_prob for score in run.score(TEXTS)) == pytest.approx(nll, rel=1e-4)
    prompts = ["the king", "a dog"]
    expected, *texts = (
        one.generate(prompts, temperature=0, max_new_tokens=12)
        for one in (ph.load(checkpoint), run, ph.load(run_dir))
    )
    assert texts == [expected, expected]
    assert main(["export", str(run_dir), str(exported_dir), "--to", "hf"]) == 0
    exported_ids = AutoTokenizer.from_pretrained(exported_dir)("the king")["input_ids"]
    assert exported_ids == tokenizer("the king")["input_ids"]


def test_perplexity_starts_with_bos(llama, tmp_path):
    text = " ".join(TEXTS)[:60]
    (tmp_path / "text.txt").write_text(text)
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "checkpoint")(text)["input_ids"]])
    with torch.no_grad():
        loss = float(llama(ids, labels=ids).loss)
    result = ph.load(tmp_path / "checkpoint").measure_perplexity(open_text([tmp_path / "text.txt"], "file"))
    assert result.tokens == ids.size(1) - 1 and result.loss == pytest.approx(loss, rel=1e-4)
