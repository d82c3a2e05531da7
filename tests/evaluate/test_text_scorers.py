"""Tests of evaluate/text_scorers.py: TER of other scripts, and COMET through a module that stands in."""

import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from sacrebleu.metrics import TER

from polyhead.core.errors import UserError
from polyhead.evaluate import text_scorers
from polyhead.evaluate.metrics import check_metrics, evaluate_translations

SOURCES, OUTPUTS = ["ein Hund", "zwei"], ["a dog", "two"]
REFERENCES = [["a dog", "one dog"], "two"]


@pytest.mark.parametrize("lang", ["zh", "", "ja"])
def test_ter_of_unspaced_scripts_counts_characters(lang):
    texts = {"ja": (["犬がいる。"], ["猫がいる。"])}.get(lang, (["一只狗在草地上"], ["草地上有一只狗"]))
    (score,) = evaluate_translations(*texts, lang, ["ter"]).scores
    assert score.value == TER(normalized=True, asian_support=True).corpus_score(texts[0], [texts[1]]).score
    assert 0 < score.value < 100 and "norm:yes" in score.signature and "asian:yes" in score.signature
    with pytest.raises(
        UserError, match="ter counts words, and sacreBLEU splits none in Thai script: use chrf"
    ):
        evaluate_translations(["สวัสดี"], ["สวัสดีครับ"], "th", ["ter"])


@pytest.fixture
def comet(monkeypatch):
    """A module in place of comet; the calls of its functions."""
    calls = []

    class Model:
        def predict(self, items, **options):
            calls.append((items, options))
            return SimpleNamespace(scores=[len(item["mt"]) / len(item["ref"]) for item in items])

    def load_from_checkpoint(path):
        calls.append(path)
        return Model()

    module = ModuleType("comet")
    module.load_from_checkpoint = load_from_checkpoint
    monkeypatch.setitem(sys.modules, "comet", module)
    monkeypatch.setattr(text_scorers, "version", lambda name: {"unbabel-comet": "2.2.7"}[name])
    return calls


def make_checkpoint(folder):
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "model.ckpt").touch()
    return folder / "checkpoints" / "model.ckpt"


def test_comet_gets_each_reference_and_is_averaged(tmp_path, comet):
    file = make_checkpoint(tmp_path)
    for path in (tmp_path, file):
        names = [f"comet:{path}"]
        check_metrics(names)
        evaluation = evaluate_translations(OUTPUTS, REFERENCES, "en", names, SOURCES, n_resamples=50)
        (score,) = evaluation.scores
        values = [(5 / 5 + 5 / 7) / 2, 1.0]
        assert (score.name, score.value) == ("comet", pytest.approx(sum(values) / 2))
        assert score.signature == f"bs:50|seed:12345|model:{path.name}|unbabel-comet:2.2.7"
        rng = np.random.default_rng(12345)
        expected = [np.mean([values[row] for row in rng.choice(2, 2)]) for _ in range(50)]
        assert score.resamples == pytest.approx(expected)
    items = [
        {"src": "ein Hund", "mt": "a dog", "ref": "a dog"},
        {"src": "ein Hund", "mt": "a dog", "ref": "one dog"},
        {"src": "zwei", "mt": "two", "ref": "two"},
    ]
    assert comet == [str(file), *[(items, {"batch_size": 8, "gpus": 0, "progress_bar": False})] * 2]
    with pytest.raises(UserError, match=r"comet reads the sources .*: use run.evaluate"):
        evaluate_translations(OUTPUTS, REFERENCES, "en", [f"comet:{file}"])


def test_comet_without_checkpoint_or_package_is_refused(tmp_path, monkeypatch):
    for path in ("", tmp_path, tmp_path / "a.ckpt", __file__):
        with pytest.raises(UserError, match=r"metric comet has no checkpoint at .*: write comet:PATH"):
            check_metrics([f"comet:{path}"])
    with pytest.raises(UserError, match="metric bleu takes no path, got 'x': write bleu"):
        check_metrics(["bleu:x"])
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(ModuleNotFoundError, match="comet"):
        evaluate_translations(OUTPUTS, REFERENCES, "en", [f"comet:{make_checkpoint(tmp_path)}"], SOURCES)
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("unbabel-comet")  # it is not installed for the tests
