"""The table of all levers, their part of the document, and one case of one lever for the live page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from polyhead.core.errors import UserError, unknown_name_error
from polyhead.core.i18n import UI_LANGUAGES, tr, translate_message
from polyhead.explain.inputs import ModelInputs
from polyhead.explain.levers.changes import (
    CAUSAL_MASK_LEVER,
    HEAD_LEVER,
    KV_HEADS_LEVER,
    LAYER_LEVER,
    POSITIONS_LEVER,
    SCALE_LEVER,
    SHUFFLE_LEVER,
)
from polyhead.explain.levers.decoding import CACHE_LEVER, FREE_RUNNING_LEVER, PREFILL_LEVER, SAMPLING_LEVER
from polyhead.explain.levers.interface import Lever, compare_outputs, describe_output
from polyhead.explain.levers.lever_input import LeverInput, read_lever_input
from polyhead.explain.trace import Facts, locate_function
from polyhead.models import Classifier, ReplacedTokenDetector, SentenceEncoder
from polyhead.run.run import Run
from polyhead.tokenizers.display import name_token

LEVERS = {
    lever.name: lever
    for lever in (
        SAMPLING_LEVER,
        SCALE_LEVER,
        CAUSAL_MASK_LEVER,
        POSITIONS_LEVER,
        SHUFFLE_LEVER,
        HEAD_LEVER,
        LAYER_LEVER,
        KV_HEADS_LEVER,
        CACHE_LEVER,
        FREE_RUNNING_LEVER,
        PREFILL_LEVER,
    )
}

MAX_OPERATIONS = 10**12
"""Operations that all cases of one lever may take in a file; of a large model it has fewer cases."""

ShowProgress = Callable[[str], None]
"""Shows which lever is computed; called with '' at the end."""

SpellOutput = Callable[[int], str]
"""The text of a token id, or the label of a class."""


def describe_levers(
    lever_input: LeverInput,
    spell: SpellOutput,
    *,
    has_cases: bool = True,
    progress: ShowProgress = lambda text: None,
) -> Facts:
    """The part ``levers`` of the document: the plain output and every lever with its cases.

    Without cases only the fields are listed, for a page that asks for each case.
    """
    part, levers = describe_rows(lever_input), []
    for number, lever in enumerate(LEVERS.values(), 1):
        progress(tr("lever {number} of {total}: {name}", number=number, total=len(LEVERS), name=lever.name))
        levers.append(describe_lever(lever_input, lever, has_cases))
    progress("")
    part["levers"] = levers
    return part | {"tokens": spell_tokens(part, spell)}


def describe_rows(lever_input: LeverInput) -> Facts:
    """The rows that are compared, and the plain output."""
    return {
        "rows": {
            "side": lever_input.side,
            "index": lever_input.rows,
            "reference": lever_input.references,
            "is_true": [label is not None for label in lever_input.labels],
        },
        "plain": describe_output(lever_input.plain_logits, lever_input.references),
    }


def describe_lever(lever_input: LeverInput, lever: Lever, has_cases: bool) -> Facts:
    """One lever: the reason why it does not apply, or its fields, the settings to begin with, and cases.

    A lever that parts of another package do not support does not apply either.
    """
    source = locate_function(lever.compute)
    entry: Facts = {"name": lever.name, "group": lever.group, "source": source, "reason": None}
    try:
        obstacle = lever.find_obstacle(lever_input)
        cases = [] if obstacle or not has_cases else _compute_cases(lever_input, lever)
    except UserError as error:
        obstacle = str(error)
    if obstacle:
        reasons = {language: translate_message(obstacle, language=language) for language in UI_LANGUAGES}
        return entry | {"reason": reasons, "fields": [], "settings": [], "cases": []}
    return entry | {
        "fields": [
            {
                "name": field.name,
                "type": field.kind,
                "default": field.default,
                "min": field.minimum,
                "max": field.maximum,
                "values": list(field.values),
            }
            for field in lever.list_fields(lever_input)
        ],
        "settings": lever.list_cases(lever_input)[: count_cases(lever_input)],
        "cases": cases,
    }


def _compute_cases(lever_input: LeverInput, lever: Lever) -> list[Facts]:
    """The cases of a lever that can be computed; the UserError of the last one if none can."""
    cases, errors = [], []
    for setting in lever.list_cases(lever_input)[: count_cases(lever_input)]:
        try:
            cases.append(compute_case(lever_input, lever.name, setting))
        except UserError as error:
            errors.append(error)
    if errors and not cases:
        raise errors[-1]
    return cases


def count_cases(lever_input: LeverInput) -> int:
    """How many cases of one lever are computed: two operations for each weight and token of each."""
    n_weights = sum(p.numel() for p in lever_input.model.parameters())
    n_tokens = len(lever_input.tokens) + len(lever_input.source or ())
    return max(2, MAX_OPERATIONS // (2 * n_weights * n_tokens))


def compute_case(lever_input: LeverInput, name: str, setting: Mapping[str, Any]) -> Facts:
    """Run the model with one setting of a lever and compare its output.

    UserError if the lever is unknown or does not apply, or the setting is not valid.
    """
    if name not in LEVERS:
        raise unknown_name_error("lever", name, LEVERS)
    lever = LEVERS[name]
    if obstacle := lever.find_obstacle(lever_input):
        raise UserError(f"lever {name!r} does not apply: {obstacle}")
    output = lever.compute(lever_input, lever.check_setting(lever_input, setting))
    baseline = lever_input.plain_logits if output.baseline is None else output.baseline
    case: Facts = {
        "setting": dict(setting),
        "baseline": output.baseline_setting,
        "result": compare_outputs(
            output.logits, baseline, lever_input.references, output.is_comparable, lever.top_k
        ),
    }
    if output.baseline is not None:
        case["baseline_result"] = describe_output(output.baseline, lever_input.references, lever.top_k)
    return case if output.detail is None else case | {"detail": output.detail}


def spell_tokens(part: Mapping[str, Any], spell: SpellOutput) -> dict[str, str]:
    """The text of every token or class that occurs in a part of the document, by its id."""
    return {str(i): spell(i) for i in sorted(set(_find_ids(part)))}


def _find_ids(node: Any, is_ids: bool = False) -> Iterator[int]:
    """The token ids under the keys ``ids``, ``reference`` and ``target``."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _find_ids(value, is_ids or key in ("ids", "reference", "target"))
    elif isinstance(node, list):
        for value in node:
            yield from _find_ids(value, is_ids)
    elif is_ids and node is not None:
        yield node


def explain_levers(run: Run, inputs: ModelInputs, window: tuple[int, int], **options: Any) -> Facts | None:
    """The part ``levers`` of the document; None for an encoder without a head, which has no output.

    ``window`` are the tokens of the last side that are shown; ``options`` are those of ``describe_levers``.
    """
    if isinstance(run.model, SentenceEncoder):
        return None
    return describe_levers(read_lever_input(run, inputs, window), make_speller(run), **options)


def explain_case(
    run: Run, inputs: ModelInputs, window: tuple[int, int], name: str, setting: Mapping[str, Any]
) -> Facts:
    """One setting of one lever, with the rows and the plain output that it is compared with."""
    lever_input = read_lever_input(run, inputs, window)
    part = {"name": name, "case": compute_case(lever_input, name, setting)} | describe_rows(lever_input)
    return part | {"tokens": spell_tokens(part, make_speller(run))}


def make_speller(run: Run) -> SpellOutput:
    """The function that spells an output of the run: a token, or the label of a class."""
    model, tokenizer = run.model, run.tokenizer.target_tokenizer
    labels: list[str] = []
    if isinstance(model, Classifier):
        labels = list(model.config.labels)
        labels = labels if len(labels) > 1 else [f"not {labels[0]}", labels[0]]
    elif isinstance(model, ReplacedTokenDetector):
        labels = ["original", "replaced"]

    def spell(i: int) -> str:
        if labels:
            return labels[i]
        return name_token(tokenizer, i) if i <= tokenizer.max_id else f"<{i}>"

    return spell
