"""Tests of cli/evaluate.py."""

from __future__ import annotations

import inspect
import typing

from polyhead.cli import evaluate, translate
from polyhead.cli.eval_metrics.dispatch import EVALUATORS
from polyhead.config.generation_config import SAMPLING_KEYS, GenerationConfig

OF_EVERY_RUN = {"directory", "files", "split", "others", "dtype", "device"}


def test_every_option_is_of_some_measurement_and_every_measurement_has_options_of_the_verb() -> None:
    verb = set(inspect.signature(evaluate.run).parameters) - OF_EVERY_RUN
    assert set().union(*(measure.options for measure in EVALUATORS.values())) == verb
    for measure in EVALUATORS.values():  # the options of the verb come as they are typed there
        hints = typing.get_type_hints(measure.evaluate)
        assert set(hints) - measure.options - {"settings"} == {"run", "files", "split", "return"}


def test_a_translator_is_measured_with_every_setting_that_it_translates_with() -> None:
    settings = {*GenerationConfig.model_fields, "source_lang", "target_lang"} - {"n_best"} - SAMPLING_KEYS
    given = settings & set(inspect.signature(translate.run).parameters)
    assert "cache" in given
    assert given <= EVALUATORS["encoder-decoder"].options
