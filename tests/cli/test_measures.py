"""`polyhead eval`: every option belongs to a measurement, and where it does not the message says to which it does."""

from __future__ import annotations

import inspect
import typing

import pytest

from polyhead.cli import evaluate, translate
from polyhead.cli.eval_metrics.dispatch import EVALUATORS, filter_options
from polyhead.config.generation_config import SAMPLING_KEYS, GenerationConfig
from polyhead.core.errors import UserError

OF_EVERY_RUN = {"directory", "files", "split", "others", "dtype", "device"}


def test_every_option_is_of_some_measurement_and_every_measurement_has_options_of_the_verb() -> None:
    verb = set(inspect.signature(evaluate.run).parameters) - OF_EVERY_RUN
    assert set().union(*(measure.options for measure in EVALUATORS.values())) == verb
    for measure in EVALUATORS.values():  # the options of the verb come as they are typed there
        hints = typing.get_type_hints(measure.evaluate)
        assert set(hints) - measure.options == {"run", "files", "split", "return"}


def test_a_translator_is_measured_with_every_setting_that_it_translates_with() -> None:
    settings = {*GenerationConfig.model_fields, "source_lang", "target_lang"} - {"n_best"} - SAMPLING_KEYS
    given = settings & set(inspect.signature(translate.run).parameters)
    assert "cache" in given
    assert given <= EVALUATORS["encoder-decoder"].options


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
                "--beam-size, --length-penalty: of translations; this run is a classifier and is measured on labelled texts"
            ],
        ),
        (
            "decoder",
            {"limit": 2, "label": "class"},
            [
                "--label: of labelled texts; this run is a language model and is measured on plain text",
                "--limit: of labelled texts and translations; this run is a language model and is measured on plain text",
            ],
        ),
        (
            "recovered",
            {"batch_tokens": 0},
            [
                "--batch-tokens: of labelled texts and translations; "
                "this run learned to recover what is hidden and is measured on hidden tokens"
            ],
        ),
        (
            "encoder-decoder",
            {"text": ["a"]},
            [
                "--text: of labelled texts and plain text; this run is an encoder-decoder and is measured on translations",
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
