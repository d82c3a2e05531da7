"""Aggregate trial results into table rows: means over seeds, intervals, significance against the base."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from polyhead.compare.io import OUTPUTS_FILE, JsonDict, ResultRow, ResultRows, read_json_file
from polyhead.compare.plan import ComparisonPlan, Design
from polyhead.compare.shared_setup import tokenizer_fingerprint
from polyhead.compare.tasks.base import Measures, QualityMeasure
from polyhead.core.array_types import Floats
from polyhead.core.errors import is_command_line
from polyhead.core.i18n import tr
from polyhead.cost.flops import update_flops_factor
from polyhead.evaluate.baselines import Baseline, beats_baseline
from polyhead.evaluate.perplexity import loss_to_perplexity

UnitStatistics = dict[int, dict[str, Floats]]
"""Seed -> metric -> statistics of each unit."""


def is_unlearned(row: ResultRow) -> bool:
    """Whether a design is known to score no better than its baseline."""
    return row.get("learned") is False


def baseline_rows(rows: ResultRows, measures: Measures) -> list[JsonDict]:
    """Table row of baseline scores; several rows if baselines differ, e.g. between tokenizers."""
    unique_rows: list[JsonDict] = []
    for row in rows:
        baselines = {name: Baseline(**fields) for name, fields in (row.get("baselines") or {}).items()}
        # the guess of the baseline of the score, the second metric, and other guesses where they differ
        guesses = {m.column: baselines[m.name].describe_guess() for m in measures if m.name in baselines}
        score = guesses.get(measures[1].column)
        names = [f"{tr('baseline')}: {score}" if score else tr("baseline")]
        names += [f"{column}: {guess}" for column, guess in guesses.items() if guess != score]
        baseline_row: JsonDict = {"base": False, "name": "; ".join(names)}
        for measure in measures:
            baseline = baselines.get(measure.name)
            baseline_row[measure.name] = baseline.value if baseline else None
            baseline_row |= {f"{measure.name}_{part}": None for part in ("spread", "interval", "p")}
        baseline_row["ppl"] = (
            None if baseline_row["loss"] is None else loss_to_perplexity(baseline_row["loss"])
        )
        if baselines and baseline_row not in unique_rows:
            unique_rows.append(baseline_row)
    return unique_rows


def describe_unlearned(rows: ResultRows, measures: Measures) -> str:
    """Warning that lists the designs that have not learned; '' if all have learned."""
    names = [row["name"] for row in rows if is_unlearned(row)]
    if not names:
        return ""
    return tr(
        "Not learned: {names}. Their score ({measure}) is not better than the baseline, so their "
        "differences are not tested; train them longer ({option}).",
        option="--budget" if is_command_line() else "budget",
        names=", ".join(names),
        measure=measures[1].column,
    )


# averaged over the seeds, in addition to the metrics
_AVERAGED_KEYS = (
    "parameters", "flops_per_token", "steps", "seconds", "tokens", "train_tokens_per_s",
    "decode_tokens_per_s", "memory", "cache_per_token", "cache_constant", "dead",
)  # fmt: skip


def build_result_rows(plan: ComparisonPlan, results: Mapping[tuple[str, int], JsonDict]) -> list[JsonDict]:
    """One row per design, best first; designs without a result come last."""
    statistics_of: dict[str, UnitStatistics] = {}
    for row in plan.designs:
        for seed in plan.seeds:
            if results.get((row.name, seed), {}).get("status") == "done":
                outputs = read_json_file(plan.trial_dir(row, seed) / OUTPUTS_FILE)
                assert outputs is not None, "outputs.json is written before result.json"
                of_seed = plan.task.unit_statistics(outputs, plan.base)
                statistics_of.setdefault(row.name, {})[seed] = of_seed
    rows = [make_result_row(plan, row, results, statistics_of) for row in plan.designs]
    note_missing_units(rows, plan)
    withhold_verdicts(rows, plan.task.measures)
    chief = next(iter(comparable_measures(rows, plan.task.measures)), plan.task.measures[0])

    def sort_key(row: JsonDict) -> tuple[bool, bool, float]:
        value = row.get(chief.name)
        best = math.inf if value is None else value if chief.lower_is_better else -value
        unlearned = row["learned"] is False  # unlearned designs keep the order of the plan
        return bool(row["fewer"]), unlearned, 0.0 if unlearned else best

    rows.sort(key=sort_key)
    return [{"rank": i + 1, **row} for i, row in enumerate(rows)]


def comparable_measures(rows: Sequence[Mapping[str, Any]], measures: Measures) -> list[QualityMeasure]:
    """Metrics that compare these rows: losses per token are comparable only with equal tokenizers."""
    same = len({row["tokenizer"] for row in rows if row["status"] == "done"}) <= 1
    return [measure for measure in measures if same or measure.across_tokenizers]


def note_missing_units(rows: Sequence[JsonDict], plan: ComparisonPlan) -> None:
    """Add a note to rows that were measured on fewer units of text than others.

    Units that are too long for a design are not in its metrics.
    """
    for measure in plan.task.measures if plan.task.page_words.has_fixed_units else ():
        max_units = max((row["units"].get(measure.name, 0) for row in rows), default=0)
        for row in rows:
            n_units = row["units"].get(measure.name, max_units)
            if n_units < max_units and not row["fewer"]:
                row["fewer"] = max_units - n_units
                note = (
                    f"{measure.column} of {n_units:,} of {max_units:,} {plan.task.page_words.unit}, the "
                    "others are too long"
                )
                row["note"] = "; ".join(filter(None, (row["note"], note)))


def withhold_verdicts(rows: Sequence[JsonDict], measures: Measures) -> None:
    """Remove the significance of the difference between a row and the base if neither has learned."""
    base = next((row for row in rows if row["base"]), None)
    if base is None or base["learned"] is not False:
        return
    for row in rows:
        if row["learned"] is False:
            row |= {f"{measure.name}_p": None for measure in measures}


def make_result_row(
    plan: ComparisonPlan,
    design: Design,
    results: Mapping[tuple[str, int], JsonDict],
    unit_statistics: Mapping[str, UnitStatistics],
) -> JsonDict:
    """Row of one design: settings, status and measurements."""
    cells = [results.get((design.name, seed), {"status": "waiting"}) for seed in plan.seeds]
    done = [cell for cell in cells if cell["status"] == "done"]
    failed = [cell for cell in cells if cell["status"] == "failed"]
    status = "refused" if design.error else "done" if done else "failed" if failed else "waiting"
    message = design.error or "; ".join(dict.fromkeys(cell["message"] for cell in failed))
    row: JsonDict = {
        "name": design.name,
        "base": design.is_base,
        "status": status,
        "message": message,
        "note": design.note,
        "changes": list(design.changes),
        "seeds": len(done),
        "tokenizer": tokenizer_fingerprint(design.recipe) if design.recipe else None,
    }
    measures = [measure.name for measure in plan.task.measures]
    for name in (*measures, *_AVERAGED_KEYS):
        values = [cell[name] for cell in done if cell.get(name) is not None]
        row[name] = statistics.fmean(values) if values else None
    row["times_forward"] = (
        update_flops_factor(design.recipe.train.lora is not None) if design.recipe else None
    )
    row["skipped"] = sum(cell.get("skipped", 0) for cell in cells)
    row["ppl"] = loss_to_perplexity(row["loss"]) if row["loss"] is not None else None
    for name in measures:
        row[f"{name}_spread"] = statistics.stdev(cell[name] for cell in done) if len(done) > 1 else None
    row["baselines"] = done[0].get("baselines", {}) if done else {}
    score, baselines = plan.task.measures[1].name, row["baselines"]
    row["learned"] = (
        None
        if row[score] is None or baselines.get(score) is None
        else beats_baseline(score, row[score], Baseline(**baselines[score]))
    )
    row["split"] = done[0]["split"] if done else None
    row["signatures"] = done[0]["signatures"] if done else None
    row["curves"] = [cell.get("curve", []) for cell in cells if cell.get("curve")]
    row["recipe"] = next(
        (cell["recipe"] for cell in done), design.recipe.dump_yaml() if design.recipe else None
    )
    own_statistics = next(iter(unit_statistics.get(design.name, {}).values()), {})
    row["units"] = {name: len(rows) for name, rows in own_statistics.items()}
    row["fewer"] = 0  # units that other designs have and this one lacks
    left_out = next((cell["left_out"] for cell in done if cell.get("left_out")), "")
    row["note"] = "; ".join(filter(None, (design.note, left_out)))
    row |= compute_intervals(design, plan, unit_statistics)
    return row


def compute_intervals(
    design: Design, plan: ComparisonPlan, unit_statistics: Mapping[str, UnitStatistics]
) -> JsonDict:
    """Interval of each metric, and its significance against the base over the seeds that both have."""
    own_statistics = unit_statistics.get(design.name, {})
    base_statistics = unit_statistics.get(plan.designs[0].name, {})
    intervals: JsonDict = {}
    same_tokenizer = design.recipe is not None and (
        tokenizer_fingerprint(design.recipe) == tokenizer_fingerprint(plan.base)
    )
    for measure in plan.task.measures:
        name = measure.name
        paired = []  # seeds for which unit i of both designs is the same
        for seed, of_seed in own_statistics.items():
            if design.is_base or design.recipe is None or seed not in base_statistics:
                continue
            stats, base_stats = of_seed[name], base_statistics[seed][name]
            # with other tokens a unit of tokens is another one, or is measured differently
            if len(stats) == len(base_stats) and (
                not measure.is_per_token or (same_tokenizer and (stats[:, 1] == base_stats[:, 1]).all())
            ):
                paired.append(seed)
        if not own_statistics:
            intervals[f"{name}_interval"] = intervals[f"{name}_p"] = None
            continue
        own_values = [of_seed[name] for of_seed in own_statistics.values()]
        if len(own_values[0]) < 2:  # a single unit cannot be resampled
            value = measure.test.score(own_values)
            intervals[f"{name}_interval"], intervals[f"{name}_p"] = [value, value], None
            continue
        p = None
        if paired:
            own_paired = [own_statistics[seed][name] for seed in paired]
            p = measure.test.p_value(own_paired, [base_statistics[seed][name] for seed in paired])
        intervals[f"{name}_interval"], intervals[f"{name}_p"] = [*measure.test.interval(own_values)], p
    return intervals
