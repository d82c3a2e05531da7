"""The whole comparison: what is shared, cell after cell, and the rows that come of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from polyhead.analysis.forecast import duration
from polyhead.compare import files
from polyhead.compare.axes import WHOLE
from polyhead.compare.files import read_json, write_json
from polyhead.compare.matching import match_parameters
from polyhead.compare.origins import begun, say, text_of, tokenizer_of
from polyhead.compare.page import write_page
from polyhead.compare.plan import Plan, Row
from polyhead.compare.process import Stop, run_process, stopping
from polyhead.compare.results import rows_of
from polyhead.compare.table import write_csv
from polyhead.compare.tasks.base import Measure
from polyhead.core.i18n import tr, translate_message
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baseline
from polyhead.places import directory_place
from polyhead.recipe import Recipe
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.lock import RunLock
from polyhead.train.resume import differences

SECTIONS = ("data", "tokenizer", "model", "train", "generation")


class Cell(NamedTuple):
    """One row with one seed, where it lives, and what it trains."""

    row: Row
    seed: int
    directory: Path
    recipe: Recipe


def prepare(plan: Plan) -> Plan:
    """Refuse what another comparison has made, train the tokenizers, and make parameters equal if that is wanted."""
    plan = begun(plan)
    check_out(plan)
    if not plan.match:
        return plan
    if plan.base.start is not None:
        raise UserError("--match params: a design that begins with a run keeps the sizes of that run")
    from polyhead.compare.measure import parameters

    labels = plan.task.labels(plan.base)

    def count(recipe: Recipe) -> int:
        return parameters(recipe, Tokenizer.load(tokenizer_of(recipe, plan.out)).vocab_size, labels)

    return match_parameters(plan, count)


def compare(plan: Plan) -> tuple[list[dict[str, Any]], bool]:
    """Run every cell that is not finished. The rows, and whether all cells are done (else it was interrupted)."""
    cells = [cell_of(plan, row, row.recipe, seed) for row in plan.rows if row.recipe for seed in plan.seeds]
    for cell in cells:
        check_cell(cell)
        tokenizer_of(cell.recipe, plan.out)
    write_json(plan.out / files.COMPARISON, described(plan))
    for row in plan.rows:
        if row.refused:
            say(tr("{name}: cannot be built: {reason}", name=row.name, reason=translate_message(row.refused)))
        elif row.note:
            say(f"{row.name}: {translate_message(row.note)}")
    with RunLock(plan.out), stopping() as stop:
        results: dict[tuple[str, int], dict[str, Any]] = {}
        finished = True
        for number, (cell, left) in enumerate(pending(cells, plan), 1):
            new = settled(cell) is None
            if finished:
                finished = one(cell, plan, stop, f"[{number}/{len(cells)}]", left)
            results[cell.row.name, cell.seed] = written(cell) or {"status": "waiting"}
            if finished and new:
                publish(plan, results)
        return publish(plan, results), finished


def pending(cells: list[Cell], plan: Plan) -> Iterator[tuple[Cell, str]]:
    """The cells with what is left after each, as a person would say it."""
    spent: list[float] = []
    to_run = [settled(cell) is None for cell in cells]
    for i, (cell, ran) in enumerate(zip(cells, to_run, strict=True)):
        rest, before = sum(to_run[i + 1 :]), time.monotonic()
        mean = (
            sum(spent) / len(spent) if spent else plan.budget.amount if plan.budget.kind == "time" else None
        )
        left = tr(", about {time} more for the rest", time=duration(mean * rest)) if mean and rest else ""
        yield cell, left
        if ran:
            spent.append(time.monotonic() - before)


def one(cell: Cell, plan: Plan, stop: Stop, number: str, left: str) -> bool:
    """Run one cell in its own process, if it is not finished; False if that was interrupted."""
    name = cell.row.name + (tr(", seed {seed}", seed=cell.seed) if len(plan.seeds) > 1 else "")
    found = settled(cell)
    if found is not None:
        say(f"{number} {name}: {brief(found, plan)} {tr('(finished before)')}")
        return True
    goes_on = (cell.directory / "checkpoints").is_dir()
    say(f"{number} {name}{tr(': goes on') if goes_on else ''}{left}")
    ask(cell, plan)
    start = time.monotonic()
    code = run_process(cell.directory, stop)
    if stop.asked:
        return False
    found = written(cell)
    if code and found is None:
        found = {"status": "failed", "message": died(code)}
        write_json(cell.directory / files.RESULT, {**found, "again": True})
    assert found is not None, "a cell that ends well has a result"
    took = duration(time.monotonic() - start)
    say(tr("    {result} in {time}", result=brief(found, plan), time=took))
    return True


def ask(cell: Cell, plan: Plan) -> None:
    """Write down what the cell is to do. All seeds of a design take the steps that its first one was given."""
    first = read_json(plan.place(cell.row, plan.seeds[0]) / files.STEPS) or {}
    (cell.directory / files.RESULT).unlink(missing_ok=True)
    write_json(
        cell.directory / files.CELL,
        {
            "recipe": cell.recipe.model_dump(mode="json"),
            "budget": [plan.budget.kind, plan.budget.amount],
            "tokenizer": str(tokenizer_of(cell.recipe, plan.out)),
            "steps": first.get("steps"),
        },
    )


def cell_of(plan: Plan, row: Row, recipe: Recipe, seed: int) -> Cell:
    """The row's recipe with the seed, in the cell's place, with the store of tokens that all cells share."""
    directory, shared = plan.place(row, seed), plan.out / "shared" / "tokens"
    update = {
        "train": recipe.train.model_copy(update={"seed": seed}),
        "data": recipe.data.model_copy(update={"cache": recipe.data.cache or shared}),
        "out": directory,
    }
    return Cell(row, seed, directory, recipe.model_copy(update=update))


def check_cell(cell: Cell) -> None:
    """A directory that was made for another design of the same name is a UserError."""
    asked = read_json(cell.directory / files.CELL)
    if asked is not None and changed_keys(asked["recipe"], cell.recipe):
        raise UserError(
            f"{cell.directory} was made for another design called {cell.row.name!r}; "
            "give this one another name, or the comparison another --out"
        )


def changed_keys(written: dict[str, Any], now: Recipe) -> list[str]:
    """The keys in which a recipe that was written down differs from one of now, but for where it lies.

    It is read as a recipe, since a key that came to be later stands at its default there.
    """
    try:
        before = Recipe.model_validate(written)
    except ValidationError:
        return ["the recipe"]
    found = [key for name in SECTIONS for key in differences(getattr(before, name), getattr(now, name), name)]
    found += [name for name in WHOLE if getattr(before, name) != getattr(now, name)]
    return [key for key in found if key != "data.cache"]


def written(cell: Cell) -> dict[str, Any] | None:
    """The result of a cell; None if there is none yet."""
    return read_json(cell.directory / files.RESULT)


def settled(cell: Cell) -> dict[str, Any] | None:
    """The same, but None also for a failure that may pass: the cell has to run."""
    found = written(cell)
    return None if found is None or found.get("again") else found


def publish(plan: Plan, results: dict[tuple[str, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as they stand, written as JSON, CSV and a page."""
    rows = rows_of(plan, results)
    write_json(
        plan.out / "compare.json",
        {
            "task": plan.base.task.name,
            "budget": str(plan.budget),
            "seeds": list(plan.seeds),
            "rows": rows,
        },
    )
    write_csv(plan.out / "compare.csv", rows)
    write_page(plan.out / "compare.html", rows, plan)
    return rows


def described(plan: Plan) -> dict[str, Any]:
    """All that rows must have in common to stand in one table."""
    text = {
        split: text_of(plan.base, split)
        for split in ("train", "valid", "test")
        if getattr(plan.base.data, split)
    }
    budget = [plan.budget.kind, plan.budget.amount]
    return {"recipe": plan.base.model_dump(mode="json"), "budget": budget, "match": plan.match, "text": text}


def check_out(plan: Plan) -> None:
    """An output directory goes with one base recipe, budget and text; rows and seeds may be added."""
    if (plan.out / "checkpoints").is_dir() or (plan.out / "model.safetensors").is_file():
        raise UserError(f"{plan.out} is the directory of a run; choose another one with --out")
    directory_place(plan.out)
    before, now = read_json(plan.out / files.COMPARISON), described(plan)
    if before is None:
        return
    changed = [name for name in ("budget", "match", "text") if before.get(name) != now[name]]
    changed += changed_keys(before["recipe"], plan.base)
    if changed:
        raise UserError(
            f"{plan.out} holds another comparison: {', '.join(changed)} differ{'s' * (len(changed) == 1)}; "
            "choose another directory with --out"
        )


def brief(found: dict[str, Any], plan: Plan) -> str:
    """The result of a cell in one line."""
    if found["status"] != "done":
        return tr("failed: {message}", message=translate_message(found["message"]))
    chief = [
        f"{m.column} {found[m.name]:.{m.digits}f}{format_baseline(found, m)}" for m in plan.task.measures[:2]
    ]
    return ", ".join([*chief, tr("{count:,} steps", count=found["steps"])])


def format_baseline(found: dict[str, Any], measure: Measure) -> str:
    """The baseline of a measure, in brackets."""
    known = found.get("baselines", {}).get(measure.name)
    if not known:
        return ""
    value = f"{known['value']:.{measure.digits}f}"
    return f" ({Baseline(**known).describe(value)})"


def died(code: int) -> str:
    """Why a process ended without a result."""
    if code in (-9, 137):
        return "killed by the system, most likely for want of memory"
    return f"its process ended with code {code}; its last lines say why"


def show_plan(plan: Plan) -> str:
    """The designs before they run."""
    seeds = f"{len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)} each"
    lines = [f"{len(plan.rows)} design{'s' * (len(plan.rows) > 1)}, {seeds}, {plan.budget}, to {plan.out}"]
    width = max(len(row.name) for row in plan.rows)
    for row in plan.rows:
        what = f"cannot be built: {row.refused}" if row.refused else row.note or " ".join(row.changes)
        lines.append(f"  {row.name:<{width}}  {what}".rstrip())
    return "\n".join(lines)
