"""From the results of cells to the rows of the table: means over seeds, intervals, significance against the base."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyhead.analysis.cost.flops import times_forward
from polyhead.analysis.recovered import perplexity_of
from polyhead.compare.files import OUTPUTS, read_json
from polyhead.compare.origins import tokens_of
from polyhead.compare.plan import Plan, Row
from polyhead.compare.significance import Floats, interval, resamples, scores
from polyhead.compare.tasks.base import Measure
from polyhead.evaluate.baselines import Baseline, beats

Result = dict[str, Any]
# what is averaged over the seeds, besides the measures
MEANS = (
    "parameters", "flops_per_token", "steps", "seconds", "tokens", "train_tokens_per_s",
    "decode_tokens_per_s", "memory", "cache_per_token", "cache_constant", "dead",
)  # fmt: skip


def rows_of(plan: Plan, results: Mapping[tuple[str, int], Result]) -> list[Result]:
    """One row a design, best first; those without a result come last."""
    statistics_of = {
        row.name: statistics_by_seed(plan, row, done)
        for row in plan.rows
        if (done := done_seeds(plan, row, results))
    }
    rows = [row_of(plan, row, results, statistics_of) for row in plan.rows]
    note_fewer(rows, plan)
    withhold_verdicts(rows, plan.task.measures)
    chief = next(iter(alike(rows, plan.task.measures)), plan.task.measures[0])

    def order(row: Result) -> tuple[bool, bool, float]:
        value = row.get(chief.name)
        best = math.inf if value is None else value if chief.less_is_better else -value
        unlearned = row["learned"] is False  # these stay in the order of the plan
        return bool(row["fewer"]), unlearned, 0.0 if unlearned else best

    rows.sort(key=order)
    return [{"rank": i + 1, **row} for i, row in enumerate(rows)]


def alike(rows: Sequence[Mapping[str, Any]], measures: Sequence[Measure]) -> list[Measure]:
    """The measures that compare these rows: losses of a token compare only where the tokens are the same."""
    same = len({row["tokenizer"] for row in rows if row["status"] == "done"}) <= 1
    return [measure for measure in measures if same or measure.across]


def note_fewer(rows: Sequence[Result], plan: Plan) -> None:
    """Mark the rows that were measured on less of the text than others: what is too long for a design is not in its figures."""
    for measure in plan.task.measures if plan.task.words.given else ():
        most = max((row["units"].get(measure.name, 0) for row in rows), default=0)
        for row in rows:
            has = row["units"].get(measure.name, most)
            if has < most and not row["fewer"]:
                row["fewer"] = most - has
                said = f"{measure.column} of {has:,} of {most:,} {plan.task.words.unit}, the others are too long for it"
                row["note"] = "; ".join(filter(None, (row["note"], said)))


def withhold_verdicts(rows: Sequence[Result], measures: Sequence[Measure]) -> None:
    """Leave out the significance of differences between a row and the base where neither has learned."""
    base = next((row for row in rows if row["base"]), None)
    if base is None or base["learned"] is not False:
        return
    for row in rows:
        if row["learned"] is False:
            row |= {f"{measure.name}_p": None for measure in measures}


def learned(row: Result, measures: Sequence[Measure]) -> bool | None:
    """Whether the score of a row, which is its second measure, is better than its baseline; None where one is missing."""
    name = measures[1].name
    value, baseline = row[name], row["baselines"].get(name)
    return None if value is None or baseline is None else beats(name, value, Baseline(**baseline))


def done_seeds(plan: Plan, row: Row, results: Mapping[tuple[str, int], Result]) -> list[int]:
    """The seeds of a row that have a result."""
    return [seed for seed in plan.seeds if results.get((row.name, seed), {}).get("status") == "done"]


def row_of(
    plan: Plan,
    row: Row,
    results: Mapping[tuple[str, int], Result],
    statistics_of: Mapping[str, Mapping[int, dict[str, Floats]]],
) -> Result:
    """One row: what it is, how it went, what was measured."""
    cells = [results.get((row.name, seed), {"status": "waiting"}) for seed in plan.seeds]
    done = [cell for cell in cells if cell["status"] == "done"]
    failed = [cell for cell in cells if cell["status"] == "failed"]
    status = "refused" if row.refused else "done" if done else "failed" if failed else "waiting"
    message = row.refused or "; ".join(dict.fromkeys(cell["message"] for cell in failed))
    found: Result = {
        "name": row.name,
        "base": row.is_base,
        "status": status,
        "message": message,
        "note": row.note,
        "changes": list(row.changes),
        "seeds": len(done),
        "tokenizer": tokens_of(row.recipe) if row.recipe else None,
    }
    measures = [measure.name for measure in plan.task.measures]
    for name in (*measures, *MEANS):
        values = [cell[name] for cell in done if cell.get(name) is not None]
        found[name] = statistics.fmean(values) if values else None
    found["times_forward"] = times_forward(row.recipe.train.adapt is not None) if row.recipe else None
    found["skipped"] = sum(cell.get("skipped", 0) for cell in cells)
    found["ppl"] = perplexity_of(found["loss"]) if found["loss"] is not None else None
    for name in measures:
        found[f"{name}_spread"] = statistics.stdev(cell[name] for cell in done) if len(done) > 1 else None
    found["baselines"] = done[0].get("baselines", {}) if done else {}
    found["learned"] = learned(found, plan.task.measures)
    found["split"] = done[0]["split"] if done else None
    found["signatures"] = done[0]["signatures"] if done else None
    found["curves"] = [cell.get("curve", []) for cell in cells if cell.get("curve")]
    found["recipe"] = next((cell["recipe"] for cell in done), row.recipe.dump_yaml() if row.recipe else None)
    own = next(iter(statistics_of.get(row.name, {}).values()), {})
    found["units"] = {name: len(rows) for name, rows in own.items()}
    found["fewer"] = 0  # units that others have and this one has not
    left = next((cell["left_out"] for cell in done if cell.get("left_out")), "")
    found["note"] = "; ".join(filter(None, (row.note, left)))
    found |= quality(row, plan, statistics_of)
    return found


def quality(row: Row, plan: Plan, statistics_of: Mapping[str, Mapping[int, dict[str, Floats]]]) -> Result:
    """Intervals of each measure, and significance against the base over the seeds that both have."""
    own, base = statistics_of.get(row.name, {}), statistics_of.get(plan.rows[0].name, {})
    found: Result = {}
    for measure in plan.task.measures:
        name, score = measure.name, measure.score
        shared = [seed for seed in own if seed in base and not row.is_base]
        paired = [s for s in shared if _pairs(measure, row, plan, own[s][name], base[s][name])]
        if not own:
            found[f"{name}_interval"] = found[f"{name}_p"] = None
            continue
        mine = [of_seed[name] for of_seed in own.values()]
        if len(mine[0]) < 2:  # of one unit nothing can be drawn
            value = scores(mine, score, np.ones((1, 1)))[0]
            found[f"{name}_interval"], found[f"{name}_p"] = [value, value], None
            continue
        weights = resamples(len(mine[0]))
        spread = interval(mine, None, score, weights)
        p = None
        if paired:
            here, there = ([which[seed][name] for seed in paired] for which in (own, base))
            p = interval(here, there, score, weights).p
        found[f"{name}_interval"], found[f"{name}_p"] = [spread.low, spread.high], p
    return found


def _pairs(measure: Measure, row: Row, plan: Plan, own: Floats, base: Floats) -> bool:
    """Whether unit i of the one is unit i of the other; with other tokens it is not, or is measured differently."""
    if len(own) != len(base) or row.recipe is None:
        return False
    same_tokens = tokens_of(row.recipe) == tokens_of(plan.base) and bool((own[:, 1] == base[:, 1]).all())
    return same_tokens or not measure.of_tokens


def statistics_by_seed(plan: Plan, row: Row, seeds: Sequence[int]) -> dict[int, dict[str, Floats]]:
    """Statistics by unit of every measure, for each seed that is done."""
    found = {}
    for seed in seeds:
        kept = read_json(plan.place(row, seed) / OUTPUTS)
        assert kept is not None, "outputs.json is written before result.json"
        found[seed] = plan.task.statistics(kept, plan.base)
    return found
