"""Tests of evaluate/classify.py."""

import pytest
import torch
from tests.hf.conftest import TEXTS
from tests.hf.rerankers_helpers import reranker
from tests.train.conftest import unsynced as unsynced
from tests.train.tasks.classification_helpers import learned as learned
from tests.train.tasks.classification_helpers import place as place

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.data.readers.labeled import read_labeled
from polyhead.evaluate.class_metrics import class_measures
from polyhead.evaluate.classify import ClassPrediction, measure_classes
from polyhead.models import Classifier
from polyhead.train.tasks.classification import open_split_labeled

PAIRS = [(a, b) for a in TEXTS for b in TEXTS]


def test_numbers_near_their_bounds_are_still_in_order(tmp_path, capsys, monkeypatch):
    reranker(tmp_path / "a", {})
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    logits = torch.tensor([10.0, 11.0, 9.9, -10.0, -11.0, -9.9, 0.0, 1.0, -1.0])[:, None].double()
    monkeypatch.setattr(
        "polyhead.evaluate.classify._compute_logits", lambda _m, _t, texts, _c, _b: (logits[: len(texts)], 0)
    )
    assert main(["classify", str(tmp_path / "a"), str(tmp_path / "pairs.tsv")]) == 0
    scores = torch.tensor([float(line) for line in capsys.readouterr().out.splitlines()])
    assert scores.argsort().tolist() == logits[:, 0].argsort().tolist()


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("unsynced")
def test_measures_are_those_of_one_text_after_another(learned):
    out, notes = learned
    run = ph.load(out)
    assert run.recipe is not None and isinstance(run.model, Classifier)
    examples, _ = read_labeled(open_split_labeled(run.recipe, "valid"))
    log_p = []
    for example in examples:
        ids = [run.tokenizer.bos_id, *run.tokenizer.encode(example.texts)[0], run.tokenizer.eos_id]
        with torch.no_grad():
            log_p.append(run.model(torch.tensor([ids]))[0].log_softmax(-1))
    true_ids = [run.config.labels.index(example.label) for example in examples]
    naive = {"loss": -sum(float(row[w]) for row, w in zip(log_p, true_ids, strict=True)) / len(true_ids)}
    naive |= class_measures([int(row.argmax()) for row in log_p], true_ids, run.config.labels)
    result = measure_classes(run.members, examples, run.generation, 256)
    assert result.measures == pytest.approx(naive, rel=1e-4)
    best = max(
        (row for row in notes.rows if row["split"] == "valid"),
        key=lambda row: (row["accuracy"], -row["step"]),
    )
    assert {name: best[name] for name in naive} == pytest.approx(naive, rel=1e-4)
    each = run.classify([example.texts[0] for example in examples])
    assert [[*one.probabilities.values()] for one in each] == [
        pytest.approx(row.exp().tolist(), rel=1e-4) for row in log_p
    ]
    assert run.classify([examples[0].texts[0]])[0].label == each[0].label
    with pytest.raises(UserError, match=r"^pairs of texts; expected a text or a list"):
        run.classify([("a dull film", "some music")])
    assert isinstance(each[0], ClassPrediction)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("unsynced")
def test_classifier_refuses_other_verbs(learned):
    run = ph.load(learned[0])
    with pytest.raises(
        UserError, match="this requires a language model, but the run is a classifier: use classify, "
    ):
        run.generate(["a"])
    with pytest.raises(
        UserError, match="this requires an encoder-decoder or a language model, but the run is a classifier"
    ):
        run.score(["a"], ["b"])
