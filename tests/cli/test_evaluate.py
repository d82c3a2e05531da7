"""Tests of cli/evaluate.py: the options of the verb are those of its measurements."""

import inspect
import typing

from polyhead.cli import evaluate, translate
from polyhead.cli.eval_metrics.dispatch import EVALUATORS
from polyhead.config.generation_config import SAMPLING_KEYS, GenerationConfig

COMMON = {"directory", "files", "split", "others", "dtype", "device", "as_json"}


def test_options_are_those_of_the_measurements():
    options = set(inspect.signature(evaluate.run).parameters) - COMMON
    assert set().union(*(measure.options for measure in EVALUATORS.values())) == options
    for measure in EVALUATORS.values():
        hints = typing.get_type_hints(measure.evaluate)
        assert set(hints) - measure.options - {"settings"} == {"run", "files", "split", "return"}
    settings = {*GenerationConfig.model_fields, "source_lang", "target_lang"} - {"n_best"} - SAMPLING_KEYS
    options = settings & set(inspect.signature(translate.run).parameters)
    assert "cache" in options and options <= EVALUATORS["encoder-decoder"].options
