"""Tests of cli/eval_metrics/printing.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.eval_baselines_helpers import KINDS, card, recipe_of
from tests.cli.eval_baselines_helpers import moved as moved
from tests.cli.eval_baselines_helpers import place as place
from tests.train.conftest import Notes

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.i18n import set_language
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_so_where_it_has_not_learned(kind: str, place: Path) -> None:
    facts = card(place / kind)
    assert "baseline" in facts["verdict"]
    names = list(facts)
    for name in names:
        if name.endswith(" baseline"):
            assert names[names.index(name) - 1] == name.removesuffix(" baseline")


def test_one_that_has_learned_is_told_no_verdict(place: Path, tmp_path: Path) -> None:
    recipe = recipe_of(
        place, "classification", steps=80, lr=1e-2, eval_every=40, schedule={"name": "cosine", "warmup": 5}
    )
    run_training(recipe.model_copy(update={"out": tmp_path / "learned"}), report=Notes())
    facts = card(tmp_path / "learned")
    assert float(facts["test accuracy"]) > float(facts["test accuracy baseline"].split()[0])
    assert "verdict" not in facts


def test_it_is_said_in_chinese(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(["--lang", "zh", "eval", str(moved / "classification"), str(moved / "test.tsv")]) == 0
    finally:
        set_language(None)
    told = capsys.readouterr()
    assert "（" not in told.out and "基线 " in told.out and "多数类" in told.out
    assert "模型还没有学会胜过多数类" in told.err


TABLES = {"decoder": "a.txt", "encoder-decoder": "a.txt a.txt", "encoder": "a.tsv"}


@pytest.mark.parametrize("kind", TABLES)
def test_evaluation_tells_the_share_of_unknown_tokens(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    letters = train_tokenizer(["abc abc\n"], Choice("char"), 50)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 32}
    labels = ("x", "y") if kind == "encoder" else ()
    model = build(ModelConfig(kind=kind, vocab_size=letters.vocab_size, labels=labels, **sizes), seed=3)
    Run(model.eval(), letters, GenerationConfig()).save("run")
    lines = ["ab 狗", "ca", "猫 cab", "ab"]
    Path("a.txt").write_text("".join(f"{line}\n" for line in lines))
    Path("a.tsv").write_text("text\tlabel\n" + "".join(f"{line}\tx\n" for line in lines))
    assert main(["eval", "run", *TABLES[kind].split()]) == 0
    out, err = capsys.readouterr()
    (line,) = [line for line in out.splitlines() if line.startswith("unknown")]
    total = sum(map(len, lines)) + (len(lines) if kind == "decoder" else 0)  # line ends are text
    assert float(line.split()[1]) == pytest.approx(100 * 2 / total, abs=1e-3)
    assert "polyhead: warning: " in err and "does not fit this text" in err
    for name in ("a.txt", "a.tsv"):
        Path(name).write_text(Path(name).read_text().replace("狗", "a").replace("猫", "a"))
    assert main(["eval", "run", *TABLES[kind].split()]) == 0
    out, err = capsys.readouterr()
    assert "unknown" not in out and "unknown" not in err
