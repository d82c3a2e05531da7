"""Empty slots by enumeration, sharing in closed form."""

import json
import statistics

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["a dog barks at the cat .", "the cat looks at a dog .", "two dogs bark ."]


def the_run(kind="decoder"):
    tokens = train_tokenizer(TEXTS * 5, Choice("bpe"), 280)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48}
    made = build(ModelConfig(kind=kind, vocab_size=tokens.vocab_size, **sizes), seed=1)
    return Run(made, tokens, GenerationConfig(max_length_ratio=1.0, max_length_extra=3))


def test_the_page_tells_of_the_lengths_of_the_text(tmp_path):
    run = the_run()
    run.save(tmp_path / "run")
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n\n")
    given = ["--run", str(tmp_path / "run"), "--text", str(tmp_path / "t.txt"), "--limit", "2"]
    assert main(["experiments", "paging", *given, "--quick", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "paging.json").read_text())
    lengths = [len(ids) + 1 for ids in run.tokenizer.encode(TEXTS)]
    reserved = 1 - statistics.fmean(lengths) / max(lengths)
    assert f"Rows of {max(lengths)} tokens, the longest of 3" in found["claims"][0]["measurement"]
    assert f"{100 * reserved:.1f} % empty" in found["claims"][0]["measurement"]
