"""Choose the evaluation of a run; its options are the keyword-only parameters of its function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from polyhead.cli.eval_metrics.classes import evaluate_classifier
from polyhead.cli.eval_metrics.language import evaluate_language_model
from polyhead.cli.eval_metrics.printing import JsonMeasures
from polyhead.cli.eval_metrics.token_accuracy import evaluate_token_recovery
from polyhead.cli.eval_metrics.translations import evaluate_translator
from polyhead.cli.options import drop_none
from polyhead.config.generation_config import verb_settings
from polyhead.core.errors import UserError
from polyhead.run.run import Run


class RunEvaluator(NamedTuple):
    """A kind of evaluation. Its options are the keyword parameters of ``evaluate``."""

    run_description: str  # description of the run: "is a classifier"
    data_description: str  # description of its data: "labelled texts"
    evaluate: Callable[..., JsonMeasures]  # (run, files, split, **options): prints the table

    @property
    def options(self) -> set[str]:
        parameters = inspect.signature(self.evaluate).parameters.values()
        names = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
        takes_settings = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        return names | set(verb_settings("eval")) if takes_settings else names


_LABEL_TEXTS, _HIDDEN_TOKENS = "labelled texts", "masked or damaged tokens"
EVALUATORS = {
    "classifier": RunEvaluator("is a classifier", _LABEL_TEXTS, evaluate_classifier),
    "token classifier": RunEvaluator("is a token classifier", _LABEL_TEXTS, evaluate_classifier),
    "question answerer": RunEvaluator("is a question answerer", _LABEL_TEXTS, evaluate_classifier),
    "decoder": RunEvaluator("is a language model", "plain text", evaluate_language_model),
    "recovered": RunEvaluator(
        f"is trained to predict {_HIDDEN_TOKENS}", _HIDDEN_TOKENS, evaluate_token_recovery
    ),
    "chat": RunEvaluator("is trained on conversations", "conversations", evaluate_token_recovery),
    "preferences": RunEvaluator("is trained on preferences", "preferences", evaluate_token_recovery),
    "embedding": RunEvaluator("is trained on pairs of texts", "pairs of texts", evaluate_token_recovery),
    "encoder-decoder": RunEvaluator("is an encoder-decoder", "translations", evaluate_translator),
}
_KIND_BY_TASK = {
    "masked-lm": "recovered", "replaced-token-detection": "recovered", "denoising": "recovered",
    "chat": "chat", "embedding": "embedding", "dpo": "preferences", "kto": "preferences",
}  # fmt: skip


def choose_evaluator(run: Run) -> RunEvaluator:
    """Return the evaluator of a run; a UserError for an encoder without a recipe, which has no task."""
    kind = run.kind
    if run.recipe and "classifier" not in kind:
        kind = _KIND_BY_TASK.get(run.recipe.task.name, kind)
    if kind not in EVALUATORS:
        raise UserError(
            "this run is an encoder without a recipe, so the task to evaluate is unknown; train from it "
            "(init_from), or use fill-mask or embed"
        )
    return EVALUATORS[kind]


def filter_options(evaluator: RunEvaluator, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are given; a UserError for those that this evaluation does not support."""
    given = drop_none(**options)
    unfit: dict[str, list[str]] = {}
    for name in given.keys() - evaluator.options:
        data = " and ".join(
            dict.fromkeys(other.data_description for other in EVALUATORS.values() if name in other.options)
        )
        unfit.setdefault(data, []).append("--" + name.replace("_", "-"))
    if unfit:
        reason = f"this run {evaluator.run_description} and is evaluated on {evaluator.data_description}"
        raise UserError(
            "\n".join(
                f"{', '.join(sorted(names))}: only for {data}; {reason}"
                for data, names in sorted(unfit.items())
            )
        )
    return given
