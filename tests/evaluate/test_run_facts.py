import re
from pathlib import Path

import pytest

import polyhead
from polyhead.core.i18n import translate_fact, use_language
from polyhead.evaluate.run_facts import describe_final_scores


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            {"valid bleu": "9 (x)", "test chrf": "62.43 (x)", "test bleu": "38.81 (tok:13a)"}
            | {"test bleu baseline": "5.12 (copied source)", "test chrf baseline": "20.10 (copied source)"},
            "test BLEU 38.81 (baseline 5.12, copied source), chrF 62.43 (baseline 20.10)",
        ),
        ({"valid perplexity": "167.900"}, "valid perplexity 167.900"),
        ({"test texts": "8 of 9", "speed": "1 times"}, ""),
    ],
)
def test_final_scores_are_those_of_the_last_split(facts, line):
    assert describe_final_scores(facts) == line


def test_baselines_of_all_tasks_are_translated():
    files = Path(polyhead.__file__).parent.rglob("*.py")
    guesses = {
        guess for file in files for guess in re.findall(r'Baseline\([^"\n]+, "([a-z ]+)"', file.read_text())
    }
    assert {"frequent labels", "mean number", "word by word", "random vectors", "reference model"} <= guesses
    with use_language("zh"):
        kept = [one for one in guesses if translate_fact(f"0.5 ({one})").isascii()]
        facts = {"valid micro_f1": "0.6", "valid micro_f1 baseline": "0.5 (frequent labels 'a')"}
        assert kept == [] and describe_final_scores(facts) == "验证集 micro F1 0.6（基线 0.5，常见标签 'a'）"
        assert translate_fact("0.5 (frequent labels 'a')") == "0.5（常见标签 'a'）"
