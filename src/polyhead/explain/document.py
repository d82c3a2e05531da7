"""The explanation of a text: its tokens, the walk through the model, its output and how it was chosen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from polyhead.config.model import SINGLE_LABEL, ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.i18n import get_language
from polyhead.explain.inputs import ModelInputs, choose_windows, describe_side, read_inputs
from polyhead.explain.largest_terms import list_largest_terms
from polyhead.explain.lens import explain_lens
from polyhead.explain.levers.table import ShowProgress, explain_levers
from polyhead.explain.part_notes import (
    count_costs,
    count_step,
    count_weight_bytes,
    describe_part,
    list_sources,
)
from polyhead.explain.patching import explain_patching
from polyhead.explain.record_parts import CURVE_BINS, SHOWN_UNITS
from polyhead.explain.search import describe_logits, describe_predictions, explain_search
from polyhead.explain.trace import Facts, Step, Trace
from polyhead.explain.watch import watch_model
from polyhead.kernels.pack_model import is_packed
from polyhead.models import SentenceEncoder
from polyhead.run.run import Run
from polyhead.run.run_directory import read_run_manifest, recorded_selection
from polyhead.run.run_examples import TextExample
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.tokenizer import Tokenizer

SCHEMA = 1
MAX_NUMBERS = 1_050_000  # stored of one pass: with them a page is below 5 MB
MIN_SHOWN, MAX_SHOWN = 12, 64  # tokens of a text
_PAIR_ARRAYS = {"alibi": 1, "t5": 1, "shaw": 1, "disentangled": 2}  # what is added to the scores
_RECURRENT_ARRAYS = {"rnn": 2, "gru": 5, "lstm": 6}  # the sums that enter the gates, and the states


def explain(
    run: Run,
    text: str,
    target: str | None = None,
    *,
    other: str | None = None,
    first: int | None = None,
    n_shown: int | None = None,
    examples: Sequence[TextExample] = (),
    has_lever_cases: bool = True,
    progress: ShowProgress = lambda text: None,
) -> Facts:
    """Walk a text through the model of a run; the result is JSON, with all arrays in one text.

    ``target`` is the target of an encoder-decoder, by default that of the example with this text, else its
    own output; or the second text of a pair for a classifier. ``other`` is a text of as many tokens, from
    which activations are patched. Of a long text ``n_shown`` tokens are shown,
    from token ``first``.
    Without ``has_lever_cases`` the levers have their fields alone, for a page that asks for each case.
    ``progress`` shows which lever is computed.
    """
    check_explainable(run)
    inputs = read_inputs(run, text, target, examples)
    lengths = [len(side.ids) for side in inputs.sides]
    windows = choose_shown(run.config, inputs, first, n_shown)
    with torch.inference_mode(), watch_model(run.model, lengths, windows) as trace:
        output = run_model(run, inputs)
    steps, layers = _order_steps(trace)
    itemsize = next(run.model.parameters()).element_size()
    walk, counted_ids = [], set[int]()
    for step in steps:
        notes = describe_part(run.config, step)
        cost = count_step(run.config, step, lengths, itemsize, counted_ids)
        walk.append(step.to_json() | notes | {"cost": cost})
    costs = count_costs(run.config, lengths)
    total = {
        "flops": costs["flops"],
        "weight_bytes": count_weight_bytes(run.model),
        "activation_bytes": sum(step["cost"]["activation_bytes"] for step in walk),
    }
    tokenizer = run.tokenizer.target_tokenizer
    predictions = describe_predictions(run.model, tokenizer, output, inputs.sides, windows[-1])
    with torch.inference_mode():
        lens = explain_lens(trace, steps, layers, predictions, tokenizer)
        terms = {} if lens is None else list_terms(run, trace, steps, lens)
    arrays = trace.store if has_lever_cases else None
    levers = explain_levers(run, inputs, windows, arrays=arrays, progress=progress)
    data = trace.store.pack()
    return {
        "schema": SCHEMA,
        "run": describe_run(run),
        "lang": get_language(),
        "inputs": {
            "text": text,
            "target": inputs.target,
            "target_is": inputs.target_is,
        },
        "sides": [
            describe_side(side, window, run.tokenizer if not i else run.tokenizer.target_tokenizer)
            for i, (side, window) in enumerate(zip(inputs.sides, windows, strict=True))
        ],
        "walk": walk,
        "layers": layers,
        "output": predictions,
        "lens": lens,
        "terms": terms,
        "generation": describe_generation(run, inputs),
        "costs": {
            "total": total,
            "decode_step": costs["decode_step"],
            "prefill": costs["prefill"],
        },
        "levers": levers,
        "patching": None if other is None else explain_patching(run, inputs, other, windows),
        "sources": list_sources(),
        "values": trace.store.values,
        "data": data,
    }


def list_terms(run: Run, trace: Trace, steps: Sequence[Step], lens: Facts) -> Facts:
    """The largest terms on the way down from the logits that the lens shares out."""
    first, last = trace.windows[lens["side"]]
    rows = [min(max(position, first), last - 1) - first for position in lens["positions"]]
    logits = [(row, token) for row, tokens in zip(rows, lens["tokens"], strict=True) for token in tokens]
    return list_largest_terms(steps, trace.store.make_reader(), dict(run.model.named_parameters()), logits)


def check_explainable(run: Run) -> None:
    """Raise a UserError for an ensemble, for packed weights, and for a head that the page cannot show."""
    if run.config.problem_type != SINGLE_LABEL:
        raise UserError(
            f"explain shows classifiers of one label per text, and this model is of {run.config.problem_type}"
        )
    if len(run.members) > 1:
        raise UserError(
            f"an explanation is supported for a single run only, and this is an ensemble of "
            f"{len(run.members)}: load one"
        )
    if is_packed(run.model):
        raise UserError("a model with packed weights cannot be explained; load it in fp32 without fast")


@torch.inference_mode()
def run_model(run: Run, inputs: ModelInputs) -> torch.Tensor:
    """The output of the model for the texts; of a sentence encoder the vector of the text, if it has one."""
    model = run.model
    output: torch.Tensor = model(*inputs.args)
    if isinstance(model, SentenceEncoder) and model.pooler is not None:
        output = model.pooler(output, inputs.args[1])
        for dense in model.dense:
            output = dense(output)
    return output


def choose_shown(
    config: ModelConfig, inputs: ModelInputs, first: int | None, n_shown: int | None
) -> list[tuple[int, int]]:
    """The tokens of each text that are shown, by default as many as keep the page small."""
    longest = max(len(side.ids) for side in inputs.sides)
    return choose_windows(inputs.sides, n_shown or count_shown(config, longest), first)


def count_shown(config: ModelConfig, longest: int) -> int:
    """How many tokens of texts of at most ``longest`` tokens are shown, so that the page stays small."""

    def find_most(is_cut: bool) -> int:
        return max(n for n in range(MAX_SHOWN + 1) if count_numbers(config, n, is_cut) <= MAX_NUMBERS)

    shown = find_most(is_cut=False)
    return max(MIN_SHOWN, shown if longest <= shown else find_most(is_cut=True))


def count_numbers(config: ModelConfig, n: int, is_cut: bool) -> int:
    """About how many numbers are stored of the layers, if n tokens of each text are shown.

    With ``is_cut`` these are not all tokens, and attention has what the others add to each query.
    """
    heads = config.attention_shape(causal=False)
    projections = heads.n_heads * heads.head_dim + heads.n_kv_heads * (heads.head_dim + heads.v_head_dim)
    layer, n_attentions = _count_layer(config, config.block, projections)
    per_token, n_attentions = config.n_layers * layer, config.n_layers * n_attentions
    if config.kind == "encoder-decoder":
        layer, n_own = _count_layer(config, config.block_choice(cross=True), projections)
        per_token += config.decoder_layers * (layer + projections + config.d_model)
        n_attentions += config.decoder_layers * (n_own + 1)
    if is_cut:
        per_token += n_attentions * heads.n_heads * heads.v_head_dim
    per_pair = n_attentions * heads.n_heads * (1 + _PAIR_ARRAYS.get(config.position.name, 0))
    return n * (per_token + n * per_pair)


def _count_layer(config: ModelConfig, block: Choice, projections: int) -> tuple[int, int]:
    """The numbers that are stored of a layer for each token, and how many self-attentions it has."""
    if block.name in _RECURRENT_ARRAYS:
        units = block.options["units"] or config.d_model
        return _RECURRENT_ARRAYS[block.name] * units + config.d_model, 0
    feed_forward = config.feed_forward
    experts = feed_forward.options["top_k"] * config.d_model if feed_forward.name == "moe" else 0
    return projections + 2 * config.d_model + 4 * SHOWN_UNITS + CURVE_BINS + 2 + experts, 1


def describe_run(run: Run) -> Facts:
    """The run and the config of its model, as far as a reader of the page needs it."""
    config, model = run.config, run.model
    names = (
        "d_model", "d_embedding", "n_layers", "n_heads", "n_kv_heads", "head_dim", "v_head_dim", "d_ff",
        "vocab_size", "max_len", "norm_first", "sandwich_norm", "share_layers", "tie_embeddings", "causal",
    )  # fmt: skip
    parts = ("attention", "decoder_attention", "cross_attention", "position", "norm", "residual",
             "feed_forward", "block", "decoder_block", "pooling")  # fmt: skip
    values: Facts = {name: getattr(config, name) for name in names}
    values["decoder_layers"] = config.decoder_layers if config.kind == "encoder-decoder" else None
    for name in parts:
        choice = getattr(config, name)
        values[name] = None if choice is None else {"name": choice.name, **choice.options}
    return {
        "name": run.directory.name if run.directory is not None else "",
        "kind": run.kind,
        "class": type(model).__name__,
        "family": run.family,
        "steps": count_training_steps(run),
        **describe_training_text(run),
        "tokenizer": name_tokenizer(run.tokenizer),
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "config": values,
    }


def name_tokenizer(tokenizer: Tokenizer) -> str:
    """How a tokenizer makes its vocabulary: bpe, wordpiece, unigram or characters (also bytes)."""
    model = json.loads(tokenizer.tokenizer_json)["model"]
    kind: str = model["type"].lower()
    return "characters" if kind == "bpe" and not model["merges"] else kind


def count_training_steps(run: Run) -> int | None:
    """The steps of training that the weights of a run are from; None if the run has no record of them."""
    manifest = read_run_manifest(run.directory) if run.directory is not None else None
    selection = recorded_selection(manifest)
    return selection.steps[-1] if selection else None


def describe_training_text(run: Run) -> Facts:
    """What the files of a run say of its training text: the languages, and how many pairs, lines or texts."""
    data = run.recipe.data if run.recipe is not None else None
    counts = [(False, 0, "")]
    corpora = data.list_corpora("train") if data is not None else []
    label = (
        corpora[0].name if corpora else Path(data.list_files("train")[0]).name if data is not None else None
    )
    for path in run.directory.glob("data/*/store.json") if run.directory is not None else ():
        with suppress(OSError, ValueError, KeyError, TypeError):  # damaged, or of another version
            report = json.loads(path.read_bytes())["report"]
            is_train = label is not None and label in report["source_label"]
            kept = int(report["used"] if "used" in report else report["lines"])
            counts.append((is_train, kept, path.parent.name.partition("-")[0]))
    languages = [data.source_lang, data.target_lang] if data is not None and data.target_lang else None
    return {"languages": languages, "examples": max(counts)[1:]}  # of files named by a pattern, the largest


def describe_generation(run: Run, inputs: ModelInputs) -> Facts | None:
    """How the run chooses its own output, and the probabilities of its tokens; None for an encoder."""
    if run.kind not in ("encoder-decoder", "decoder"):
        return None
    (ids,) = run.tokenizer.encode([inputs.text])
    generation = explain_search(run, ids) if ids else None
    if generation is None:
        return None
    best = generation["outputs"][0]["ids"]
    generation |= {"free": score_output(run, inputs, best)}
    if inputs.target is not None and inputs.target_is != "output":
        (target_ids,) = run.tokenizer.target_tokenizer.encode([inputs.target])
        generation |= {"teacher": score_output(run, inputs, target_ids)}
    return generation


@torch.inference_mode()
def score_output(run: Run, inputs: ModelInputs, output: list[int]) -> list[Facts]:
    """Each token of an output given those before it: probability, rank and log of the sum of exp(logit)."""
    if run.kind == "decoder":
        prompt = inputs.sides[0].ids
        tokens, start, labels = [*prompt, *output], len(prompt) - 1, output
        logits = run.model(torch.tensor([tokens[:-1] if output else tokens], device=run.device))[0]
    else:
        template = with_languages(run.tokenizer)
        most = run.config.max_len  # an output may be longer by its start token
        labels, start = template.labels(output)[:most], 0
        target = torch.tensor([template.decoder_input(output)[:most]], device=run.device)
        logits = run.model(inputs.args[0], target)[0]
    rows = [
        describe_logits(run.tokenizer.target_tokenizer, logits[start + i].float().cpu(), token, 1)
        for i, token in enumerate(labels)
    ]
    return [row["expected"] | {"logsumexp": row["logsumexp"]} for row in rows]


def _order_steps(trace: Trace) -> tuple[list[Any], list[Facts]]:
    """The steps with those of the source first, and the layers with the steps that belong to them."""
    steps = sorted(trace.steps, key=lambda step: step.place.side)
    layers = []
    for layer in trace.layers:
        inside = [
            i for i, step in enumerate(steps)
            if (step.place.stack, step.place.layer) == (layer["stack"], layer["index"])
        ]  # fmt: skip
        layers.append(layer | {"steps": [inside[0], inside[-1] + 1] if inside else [0, 0]})
    return steps, layers
