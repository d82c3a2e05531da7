import pytest
import torch
from tests.evaluate.fill_mask_helpers import TEXTS, make_run
from torch.nn.functional import cross_entropy

from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.data.readers.labeled import LabeledExample
from polyhead.evaluate.classify import (
    calibration_error,
    check_text_arity,
    class_measures,
    classify,
    confusion_matrix,
    fit_temperature,
    list_confusions,
    log_softmax,
    measure_classes,
)

LABELS = ("good", "bad", "odd")


def test_scores_near_their_bounds_stay_in_order(tmp_path, capsys, monkeypatch):
    """As printed for a reranker, whose sigmoid rounds to 0 and 1."""
    run = make_run(labels=("relevance",), pooling="first", n_segments=2)
    run.generation = run.generation.model_copy(update={"score_activation": "sigmoid"})
    run.save(tmp_path / "run")
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a in TEXTS[:3] for b in TEXTS[:3]))
    logits = torch.tensor([10.0, 11.0, 9.9, -10.0, -11.0, -9.9, 0.0, 1.0, -1.0])[:, None].double()
    monkeypatch.setattr("polyhead.evaluate.classify._compute_logits", lambda *_: (logits, 0))
    assert main(["classify", str(tmp_path / "run"), str(tmp_path / "pairs.tsv")]) == 0
    scores = torch.tensor([float(line) for line in capsys.readouterr().out.splitlines()])
    assert scores.argsort().tolist() == logits[:, 0].argsort().tolist()


@torch.no_grad()
def test_measures_equal_those_of_single_texts():
    run, texts = make_run(labels=LABELS, pooling="mean"), TEXTS[:4]
    log_p = []
    for ids in run.tokenizer.encode(texts):
        row = torch.tensor([[run.tokenizer.bos_id, *ids, run.tokenizer.eos_id]])
        log_p.append(run.model(row)[0].log_softmax(-1))
    true_ids = [0, 2, 1, 0]
    examples = [LabeledExample(i, (t,), LABELS[true_ids[i]], str(i)) for i, t in enumerate(texts)]
    expected = {"loss": -sum(float(row[i]) for row, i in zip(log_p, true_ids, strict=True)) / 4}
    expected |= class_measures([int(row.argmax()) for row in log_p], true_ids, LABELS)
    expected["ece"] = naive_ece(torch.stack(log_p).double().exp(), torch.tensor(true_ids))
    result = measure_classes(run.members, examples, run.generation, 256)
    assert result.measures == pytest.approx(expected, rel=1e-4)
    label_p = [float(row[i].exp()) for row, i in zip(log_p, true_ids, strict=True)]
    assert [hard.probability for hard in result.hardest] == pytest.approx(sorted(label_p), rel=1e-4)
    assert result.hardest[0].example == examples[label_p.index(min(label_p))]
    pairs = [(i, LABELS.index(label)) for i, label in zip(true_ids, result.predictions, strict=True)]
    assert [[pairs.count((i, j)) for j in range(3)] for i in range(3)] == result.confusion.tolist()
    predictions = run.classify(texts)
    for prediction, row in zip(predictions, log_p, strict=True):
        assert [*prediction.probabilities.values()] == pytest.approx(row.exp().tolist(), rel=1e-4)
    assert run.classify(texts[:1])[0].label == predictions[0].label == LABELS[int(log_p[0].argmax())]


def naive_ece(probabilities, true_ids):
    """Guo et al., 2017, eq. 3: 15 bins (m/15, (m + 1)/15]."""
    confidence, predicted = probabilities.max(-1)
    error = 0.0
    for m in range(15):
        inside = (confidence > m / 15) & (confidence <= (m + 1) / 15)
        if inside.any():
            right = (predicted == true_ids)[inside].double().mean()
            error += float(inside.double().mean() * (right - confidence[inside].mean()).abs())
    return error


def test_temperature_has_the_lowest_loss():
    torch.manual_seed(3)
    logits = 6 * torch.randn(400, 5).double()  # six times too certain
    targets = torch.distributions.Categorical(logits=logits / 6).sample()
    temperature = fit_temperature(logits.numpy(), targets.numpy())
    losses = {t: float(cross_entropy(logits / t, targets)) for t in torch.linspace(1, 12, 1101).tolist()}
    assert temperature == pytest.approx(min(losses, key=losses.__getitem__), abs=0.011)
    before, after = (
        calibration_error(log_softmax(logits.numpy() / t), targets.numpy()) for t in (1, temperature)
    )
    assert before == pytest.approx(naive_ece(logits.softmax(-1), targets))
    assert after == pytest.approx(naive_ece((logits / temperature).softmax(-1), targets))
    assert after < 0.06 < before
    all_right = logits.argmax(-1)
    assert fit_temperature(logits.numpy(), all_right.numpy()) == pytest.approx(0.05)


def test_confusions_are_listed_by_frequency():
    counts = confusion_matrix([0, 1, 1, 2, 2, 2, 0], [0, 0, 0, 1, 1, 1, 2], 3)
    assert list_confusions(counts) == [(1, 2, 3), (0, 1, 2), (2, 0, 1)]
    assert list_confusions(counts, 1) == [(1, 2, 3)]


def test_scores_of_rankers_and_their_truncated_texts():
    runs = [make_run(labels=("relevance",), pooling="mean", max_len=max_len) for max_len in (4, 64)]
    members = [member for run in runs for member in run.members]
    scores, sigmoids = (
        [float(p.probabilities["relevance"]) for p in classify(members[:1], TEXTS, config, 256).predictions]
        for config in (
            runs[0].generation.model_copy(update={"score_activation": name})
            for name in ("identity", "sigmoid")
        )
    )
    assert sigmoids == pytest.approx(torch.tensor(scores).sigmoid().tolist(), abs=1e-6)
    counts = [classify([member], TEXTS[:4], runs[0].generation, 256).n_truncated for member in members]
    assert counts[0] > 0 == counts[1]
    assert classify(members[::-1], TEXTS[:4], runs[0].generation, 256).n_truncated == counts[0]


@pytest.mark.parametrize(
    ("texts", "n_texts", "message"),
    [
        ([("a film", "music")], 1, "^pairs of texts; expected a text or a list of texts, as in"),
        (["a film"], 2, r'^single texts; expected a list of pairs, \["a", "b"\], as in'),
        ([3], 0, "text 1 is int, expected a string or a pair of strings"),
        (["a", ("a",)], 0, "text 2 has 1 parts, expected a pair of texts"),
        ([("a", "b"), "ab"], 0, "^text 2 is 'ab', expected a pair of texts$"),
        ([("a", "b"), "ab"], 2, "^text 2 is 'ab', expected a pair of texts$"),
        (["a", "b", ["c", "d"]], 1, r"^text 3 is \['c', 'd'\], expected one text$"),
        (["a", ("b", "c")], 2, r'^single texts; expected a list of pairs, \["a", "b"\], as in'),
        ([{"question": "a", "context": "b"}], 2, "^text 1 is dict, expected a string or a pair of strings$"),
        ([("a", "b"), (part for part in "ab")], 2, "^text 2 is generator, expected a string or a pair"),
    ],
)
def test_wrong_arity_is_refused(texts, n_texts, message):
    with pytest.raises(UserError, match=message):
        check_text_arity(texts, n_texts)


def test_classifier_refuses_other_labels_and_verbs():
    run, example = make_run(labels=LABELS, pooling="mean"), LabeledExample(3, ("a film",), "fine", "3")
    with pytest.raises(UserError, match="line 3: the model has no class 'fine'; it has good, bad, odd"):
        measure_classes(run.members, [example], run.generation, 256)
    with pytest.raises(UserError, match="requires a language model, but the run is a classifier: use"):
        run.generate(["a"])
    message = "requires an encoder-decoder or a language model, but the run is a classifier"
    with pytest.raises(UserError, match=message):
        run.score(["a"], ["b"])
