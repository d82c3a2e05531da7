import random
from pathlib import Path

import pytest

WORDS = "the cat a dog sees bites and loves no bird that sings here".split()  # noqa: SIM905
RNG = random.Random(1)
SENTENCES = [" ".join(RNG.choices(WORDS, k=6)) for _ in range(60)]


@pytest.fixture(autouse=True)
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("".join(f"{line}\n" for line in SENTENCES))


def test_recipe_has_overrides_and_quoted_commands(cli):
    overrides = ["model.position=alibi", "tokenizer.kind=char", "data.document_separator=line"]
    out = cli("init", "a.txt", *overrides).out
    assert out.startswith("# A language model: 60 documents, 1.6 kB of text (a.txt).\n")
    for line in ("position: alibi", "kind: char", "document_separator: line"):
        assert f"  {line}\n" in out
    for name in ("one.en", "one.de"):
        Path(name).write_text(f"{SENTENCES[0]}\n")
    err = cli("init", "one.en", "one.de", "--output", "my own.yaml").err
    assert "train it: polyhead train 'my own.yaml'" in err
    first, second, _, fourth, *_ = Path("my own.yaml").read_text().splitlines()
    assert first == "# A translation model: 1 pair, 0.1 kB of text (one.en, one.de)."
    assert second.startswith("# exports: CTranslate2, ONNX; not Hugging Face: position is 'rope'")
    assert fourth == "# polyhead train 'my own.yaml'"
