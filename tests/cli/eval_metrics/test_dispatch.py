"""`polyhead eval`: every option belongs to a measurement, and where it does not the message says to which it
does.
"""

from __future__ import annotations

import pytest

from polyhead.cli.eval_metrics.dispatch import EVALUATORS, filter_options
from polyhead.core.errors import UserError


def test_options_that_were_not_typed_are_left_to_the_measurement() -> None:
    typed = {"limit": 3, "output": None, "text": None, "batch_tokens": None}
    assert filter_options(EVALUATORS["classifier"], typed) == {"limit": 3}
    assert filter_options(EVALUATORS["decoder"], {"limit": None}) == {}


@pytest.mark.parametrize(
    ("kind", "typed", "lines"),
    [
        (
            "classifier",
            {"beam_size": 3, "length_penalty": 1.0, "limit": 2},
            [
                "--beam-size, --length-penalty: of translations; this run is a classifier and is "
                "evaluated on labelled texts"
            ],
        ),
        (
            "decoder",
            {"limit": 2, "label": "class"},
            [
                "--label: of labelled texts; this run is a language model and is evaluated on plain text",
                "--limit: of labelled texts and translations; this run is a language model and is "
                "evaluated on plain text",
            ],
        ),
        (
            "recovered",
            {"batch_tokens": 0},
            [
                "--batch-tokens: of labelled texts and translations; this run is trained to predict "
                "masked or damaged tokens and is evaluated on masked or damaged tokens"
            ],
        ),
        (
            "encoder-decoder",
            {"text": ["a"]},
            [
                "--text: of labelled texts and plain text; this run is an encoder-decoder and is "
                "evaluated on translations",
            ],
        ),
    ],
)
def test_an_option_of_another_measurement_is_refused(
    kind: str, typed: dict[str, object], lines: list[str]
) -> None:
    with pytest.raises(UserError) as refused:
        filter_options(EVALUATORS[kind], typed)
    assert str(refused.value).splitlines() == lines
