"""The table of all levers, their part of the document, and one case of one lever for the live page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from polyhead.core.errors import UserError, unknown_name_error
from polyhead.core.i18n import UI_LANGUAGES, tr, translate_message
from polyhead.explain.arrays import ArrayStore
from polyhead.explain.inputs import ModelInputs
from polyhead.explain.levers.attention_change import (
    MAP_LEVERS,
    MAX_CASE_BYTES,
    MAX_LEVER_BYTES,
    MapStore,
    describe_attention_change,
)
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
from polyhead.introspect.compute_attention import AttentionWeights, record_attention
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
    arrays: ArrayStore | None = None,
    progress: ShowProgress = lambda text: None,
) -> Facts:
    """The part ``levers`` of the document: the plain output and every lever with its cases.

    The changed weights of attention are stored in ``arrays``. Without it only the fields are listed, for a
    page that asks for each case.
    """
    part, levers = describe_rows(lever_input), []
    for number, lever in enumerate(LEVERS.values(), 1):
        progress(tr("lever {number} of {total}: {name}", number=number, total=len(LEVERS), name=lever.name))
        levers.append(describe_lever(lever_input, lever, arrays))
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


def describe_lever(lever_input: LeverInput, lever: Lever, arrays: ArrayStore | None) -> Facts:
    """One lever: the reason why it does not apply, or its fields, the settings to begin with, and cases.

    A lever that parts of another package do not support does not apply either.
    """
    source = locate_function(lever.compute)
    entry: Facts = {"name": lever.name, "source": source, "reason": None}
    try:
        obstacle = lever.find_obstacle(lever_input)
        cases = [] if obstacle or arrays is None else _compute_cases(lever_input, lever, arrays)
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


def _compute_cases(lever_input: LeverInput, lever: Lever, arrays: ArrayStore) -> list[Facts]:
    """The cases of a lever that can be computed; the UserError of the last one if none can."""
    cases, errors = [], []
    settings = lever.list_cases(lever_input)[: count_cases(lever_input)]
    max_bytes = min(MAX_CASE_BYTES, MAX_LEVER_BYTES / max(1, len(settings)))
    for i, setting in enumerate(settings):
        maps = MapStore(arrays, f"levers.{lever.name}.{i}", max_bytes)
        try:
            cases.append(compute_case(lever_input, lever.name, setting, maps))
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


def compute_case(
    lever_input: LeverInput, name: str, setting: Mapping[str, Any], maps: MapStore | None = None
) -> Facts:
    """Run the model with one setting of a lever and compare its output, and with ``maps`` its attention.

    UserError if the lever is unknown or does not apply, or the setting is not valid.
    """
    if name not in LEVERS:
        raise unknown_name_error("lever", name, LEVERS)
    lever = LEVERS[name]
    if obstacle := lever.find_obstacle(lever_input):
        raise UserError(f"lever {name!r} does not apply: {obstacle}")
    checked = lever.check_setting(lever_input, setting)
    has_maps = maps is not None and name in MAP_LEVERS and bool(lever_input.plain_weights)
    unrecorded: AbstractContextManager[AttentionWeights] = nullcontext({})
    with record_attention(lever_input.model) if has_maps else unrecorded as weights_by_name:
        output = lever.compute(lever_input, checked)
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
    if maps is not None and has_maps:
        # a slot of several tokens has no position in a matrix of tokens
        is_merged = (output.detail or {}).get("merged", False)
        case["attention"] = (
            None if is_merged else describe_attention_change(lever_input, weights_by_name, output, maps)
        )
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


def explain_levers(
    run: Run, inputs: ModelInputs, windows: Sequence[tuple[int, int]], **options: Any
) -> Facts | None:
    """The part ``levers`` of the document; None for an encoder without a head, which has no output.

    ``windows`` are the tokens of each text that are shown; ``options`` are those of ``describe_levers``.
    """
    if isinstance(run.model, SentenceEncoder):
        return None
    return describe_levers(read_lever_input(run, inputs, windows), make_speller(run), **options)


def explain_case(
    run: Run,
    inputs: ModelInputs,
    windows: Sequence[tuple[int, int]],
    name: str,
    setting: Mapping[str, Any],
    attention: str | None = None,
) -> Facts:
    """One setting of one lever, with the rows and the plain output that it is compared with.

    It has the changed weights of one attention, by default of the one in which they change most.
    """
    lever_input, arrays = read_lever_input(run, inputs, windows), ArrayStore()
    maps = MapStore(arrays, f"levers.{name}.{json.dumps(setting)}", path=attention)
    part = {"name": name, "case": compute_case(lever_input, name, setting, maps)} | describe_rows(lever_input)
    part |= {"tokens": spell_tokens(part, make_speller(run)), "data": arrays.pack()}
    return part | {"values": arrays.values}


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
