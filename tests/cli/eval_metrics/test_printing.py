import re
from pathlib import Path

import pytest
from tests.cli.cli_helpers import save_run
from tests.cli.eval_baselines_helpers import KINDS, card, recipe_of
from tests.cli.eval_baselines_helpers import runs_dir as runs_dir
from tests.train.conftest import Notes

from polyhead.train.run_training import run_training


@pytest.mark.parametrize("kind", KINDS)
def test_untrained_run_of_any_kind_has_a_verdict(kind, runs_dir):
    facts = card(runs_dir / kind)
    assert re.match(r"it has not learned|\w+ does not beat its baseline; ", facts["verdict"])
    names = list(facts)
    for i, name in enumerate(names):
        if name.endswith(" baseline"):
            assert names[i - 1] == name.removesuffix(" baseline")


def test_trained_run_beats_its_baseline(runs_dir, tmp_path):
    schedule = {"name": "cosine", "warmup": 5}
    recipe = recipe_of(runs_dir, "classification", steps=80, lr=1e-2, eval_every=40, schedule=schedule)
    run_training(recipe.model_copy(update={"out": tmp_path / "run"}), report=Notes())
    facts = card(tmp_path / "run")
    assert float(facts["test accuracy"]) > float(facts["test accuracy baseline"].split()[0])
    assert facts["verdict"].startswith("it beats the baseline; the validation loss was ")


@pytest.mark.parametrize(
    ("kind", "files"),
    [("decoder", ["a.txt"]), ("encoder-decoder", ["a.txt", "a.txt"]), ("encoder", ["a.tsv"])],
)
def test_share_of_unknown_tokens_is_printed(kind, files, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = ("x", "y") if kind == "encoder" else ()
    save_run("run", ["abc abc\n"], "char", kind=kind, labels=labels, max_len=32)
    lines = ["ab 狗", "ca", "猫 cab", "ab"]
    Path("a.txt").write_text("".join(f"{line}\n" for line in lines))
    Path("a.tsv").write_text("text\tlabel\n" + "".join(f"{line}\tx\n" for line in lines))
    out, err = cli("eval", "run", *files)
    (line,) = [line for line in out.splitlines() if line.startswith("unknown")]
    total = sum(map(len, lines)) + (len(lines) if kind == "decoder" else 0)  # line ends are text
    assert float(line.split()[1]) == pytest.approx(100 * 2 / total, abs=1e-3)
    assert "polyhead: warning: " in err and "does not fit this text" in err
    for name in ("a.txt", "a.tsv"):
        Path(name).write_text(Path(name).read_text().replace("狗", "a").replace("猫", "a"))
    out, err = cli("eval", "run", *files)
    assert "unknown" not in out and "unknown" not in err
