"""Tests of cli/eval_metrics/dispatch.py: options of another measurement are refused by name."""

import pytest

from polyhead.cli.eval_metrics.dispatch import EVALUATORS, filter_options
from polyhead.core.errors import UserError


def test_missing_options_are_dropped():
    options = {"limit": 3, "output": None, "text": None, "batch_tokens": None}
    assert filter_options(EVALUATORS["classifier"], options) == {"limit": 3}
    assert filter_options(EVALUATORS["decoder"], {"limit": None}) == {}


TRANSLATOR = "this run is an encoder-decoder and is evaluated on translations"
CLASSIFIER = "this run is a classifier and is evaluated on labelled texts"
LANGUAGE_MODEL = "this run is a language model and is evaluated on plain text"
MASKED = "masked or damaged tokens"
ENCODER = f"this run is trained to predict {MASKED} and is evaluated on {MASKED}"


SIDES = "only for labelled texts and translations"
TEXTS = "only for labelled texts and plain text"
LABEL_LINES = [f"--label: only for labelled texts; {LANGUAGE_MODEL}", f"--limit: {SIDES}; {LANGUAGE_MODEL}"]
BEAMS = {"beam_size": 3, "length_penalty": 1.0, "limit": 2}


@pytest.mark.parametrize(
    ("kind", "options", "lines"),
    [
        ("classifier", BEAMS, [f"--beam-size, --length-penalty: only for translations; {CLASSIFIER}"]),
        ("decoder", {"limit": 2, "label": "class"}, LABEL_LINES),
        ("recovered", {"batch_tokens": 0}, [f"--batch-tokens: {SIDES}; {ENCODER}"]),
        ("encoder-decoder", {"text": ["a"]}, [f"--text: {TEXTS}; {TRANSLATOR}"]),
    ],
)
def test_option_of_another_measurement_is_refused(kind, options, lines):
    with pytest.raises(UserError) as error:
        filter_options(EVALUATORS[kind], options)
    assert str(error.value).splitlines() == lines
