import pytest

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
