import pytest

from polyhead.evaluate.baselines import Baseline
from polyhead.evaluate.run_facts import scores_from_facts
from polyhead.evaluate.verdict import add_baseline_facts, describe_conclusion, describe_verdict

BASELINES = {"bleu": Baseline(0.3, "copied source"), "chrf": Baseline(12.0, "copied source")}
FALLING, FLAT, SHORT = [5.0, 4.0, 3.5], [5.0, None, 3.5, 3.6], [5.0]


@pytest.mark.parametrize(
    ("values", "losses", "parts"),
    [
        ({"bleu": 0.08, "chrf": 9.0}, FALLING, ["BLEU 0.08 is below the", "still falling", "train.lr"]),
        ({"bleu": 0.3}, FLAT, ["BLEU 0.30 is no better than", "no longer falling", "larger model"]),
        ({"bleu": 0.2}, SHORT, ["BLEU 0.20 is below", "train longer (train.steps, train.epochs)"]),
        ({"bleu": 4.0, "chrf": 9.0}, SHORT, ["chrF 9.00 is below the baseline 12.00 (copied source)"]),
    ],
)
def test_verdict_names_score_baseline_and_remedy(values, losses, parts):
    message = describe_verdict(values, BASELINES, "translation", losses)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("values", [{"bleu": 4.0, "chrf": 19.0}, {"loss": 3.0}])
def test_no_verdict_for_better_scores(values):
    assert describe_verdict(values, BASELINES, "translation", SHORT) is None


@pytest.mark.parametrize(
    ("values", "losses", "conclusion"),
    [
        (
            {"bleu": 0.08},
            SHORT,
            "it has not learned to translate yet; train longer (train.steps, train.epochs)",
        ),
        ({"bleu": 4.0, "chrf": 9.0}, FLAT, "chrF does not beat its baseline; the validation loss was no"),
        ({"bleu": 4.0}, FALLING, "it beats the baseline; the validation loss was still falling: longer"),
        ({"bleu": 4.0}, FLAT, "it beats the baseline; the validation loss was no longer falling"),
    ],
)
def test_conclusion_compares_scores_with_baselines(values, losses, conclusion):
    assert describe_conclusion(values, BASELINES, "translation", losses).startswith(conclusion)


def test_perfect_baseline_is_not_beaten():
    baselines = {"accuracy": Baseline(1.0, "majority class"), "f1": Baseline(1.0, "majority class")}
    scores = {"accuracy": 1.0, "f1": 1.0}
    assert describe_conclusion(scores, baselines, "classification").startswith("its scores are perfect")
    baselines["f1"] = Baseline(0.9, "majority class")
    assert describe_conclusion(scores, baselines, "classification") == "it beats the baseline"


def test_lower_perplexity_is_better():
    baselines = {"ppl": Baseline(200.0, "unigram")}
    assert describe_verdict({"ppl": 150.0}, baselines, "language-model") is None
    message = describe_verdict({"ppl": 250.0}, baselines, "language-model", [2.0, 1.0])
    assert message.startswith("perplexity 250.00 is above the baseline 200.00 (unigram; lower is better)")


def test_facts_are_followed_by_their_baselines():
    facts = {"valid loss": "5.1234", "valid perplexity": "167.900", "test bleu": "1.25 (nrefs:1)"}
    facts["test texts"] = "8 of 9"
    baselines = {"ppl": Baseline(80.0, "unigram"), "bleu": Baseline(0.3, "copied source")}
    result = add_baseline_facts(add_baseline_facts(facts, "valid", baselines), "test", baselines)
    assert list(result.items()) == [
        ("valid loss", "5.1234"),
        ("valid perplexity", "167.900"),
        ("valid perplexity baseline", "80.000 (unigram)"),
        ("test bleu", "1.25 (nrefs:1)"),
        ("test bleu baseline", "0.30 (copied source)"),
        ("test texts", "8 of 9"),
    ]
    assert scores_from_facts(result, "test") == {"bleu": 1.25}
