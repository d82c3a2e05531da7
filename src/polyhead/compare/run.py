"""Run a comparison: prepare shared files, run each trial in a subprocess, and publish the rows.

The memory of a trial is separate, and if it is killed the comparison continues.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from polyhead.compare.io import (
    COMPARISON_FILE,
    RESULT_FILE,
    STEPS_FILE,
    TRIAL_FILE,
    JsonDict,
    read_json_file,
    write_json_file,
)
from polyhead.compare.plan import MAX_SEEDS, ComparisonPlan, Design, make_plan, match_parameters
from polyhead.compare.report.page import write_compare_page
from polyhead.compare.report.text_table import format_table, write_csv
from polyhead.compare.results import build_result_rows
from polyhead.compare.shared_setup import check_init_from, ensure_tokenizer, fingerprint_files, print_status
from polyhead.compare.sweep import TOP_LEVEL_KEYS, read_axis, read_budget, read_design
from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError, check_int, format_value
from polyhead.core.i18n import tr, translate_message
from polyhead.core.output_paths import check_output_dir
from polyhead.core.registry import TASK
from polyhead.evaluate.baselines import Baseline
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.lock import RunLock
from polyhead.train.resume import list_differences
from polyhead.train.signals import handle_signals
from polyhead.train.tasks.base import HasClasses
from polyhead.viz.run_record import format_seconds


class StopHandler:
    """Signal handler that records Ctrl-C or SIGTERM and forwards it to the running trial."""

    def __init__(self) -> None:
        self.is_requested = False
        self.child: subprocess.Popen[bytes] | None = None

    def __call__(self, number: int, frame: object) -> None:
        self.is_requested = True
        if self.child is None:
            raise KeyboardInterrupt
        self.child.send_signal(signal.SIGTERM)


@contextmanager
def handle_stop_signals() -> Iterator[StopHandler]:
    """Handle Ctrl-C and SIGTERM as stop requests within the context."""
    stop = StopHandler()
    with handle_signals(stop):
        yield stop


def run_subprocess(directory: Path, stop: StopHandler) -> int:
    """Train and measure the trial of a directory; return the exit code, negative if a signal killed it."""
    command = [sys.executable, "-m", "polyhead", "compare", "--cell", str(directory)]
    # user-defined parts are importable as in this process
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.getcwd()]))}
    # in a new session Ctrl-C in the terminal reaches only this process, so the trial gets one signal
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True) as child:
        stop.child = child
        try:
            return child.wait()
        finally:
            stop.child = None


_RECIPE_SECTIONS = ("data", "tokenizer", "model", "train", "generation")


class Trial(NamedTuple):
    """One design with one seed, its directory, and the recipe it trains."""

    design: Design
    seed: int
    directory: Path
    recipe: Recipe


def prepare_comparison(plan: ComparisonPlan) -> ComparisonPlan:
    """Check the plan and the output directory, and match parameter counts if requested.

    Matching trains the tokenizers.
    """
    plan = check_init_from(plan)
    check_same_comparison(plan)
    if not plan.match:
        return plan
    if plan.base.init_from is not None:
        raise UserError("--match params: a design with init_from keeps the sizes of that run")
    from polyhead.compare.cost_metrics import count_parameters

    part = TASK.get(plan.base.task.name)
    labels = part.read_classes(plan.base) if isinstance(part, HasClasses) else ()

    def count(recipe: Recipe) -> int:
        return count_parameters(recipe, Tokenizer.load(ensure_tokenizer(recipe, plan.out)).vocab_size, labels)

    return match_parameters(plan, count)


def run_trials(plan: ComparisonPlan) -> tuple[list[JsonDict], bool]:
    """Run all unfinished trials; return the rows, and False if the comparison was interrupted."""
    trials = [
        make_trial(plan, row, row.recipe, seed) for row in plan.designs if row.recipe for seed in plan.seeds
    ]
    for trial in trials:
        config = read_json_file(trial.directory / TRIAL_FILE)
        if config is not None and find_changed_keys(config["recipe"], trial.recipe):
            raise UserError(
                f"{trial.directory} was created for another design named {trial.design.name!r}; rename this "
                "one, or choose another --output"
            )
        ensure_tokenizer(trial.recipe, plan.out)
    write_json_file(plan.out / COMPARISON_FILE, describe_setup(plan))
    for row in plan.designs:
        if row.error:
            print_status(
                tr("{name}: cannot be built: {reason}", name=row.name, reason=translate_message(row.error))
            )
        elif row.note:
            print_status(f"{row.name}: {translate_message(row.note)}")
    with RunLock(plan.out), handle_stop_signals() as stop:
        results: dict[tuple[str, int], JsonDict] = {}
        finished = True
        for number, (trial, eta) in enumerate(iter_with_eta(trials, plan), 1):
            is_new = finished_result(trial) is None
            if finished:
                finished = run_pending_trial(trial, plan, stop, f"[{number}/{len(trials)}]", eta)
            results[trial.design.name, trial.seed] = read_result(trial) or {"status": "waiting"}
            if finished and is_new:
                publish_results(plan, results)
        return publish_results(plan, results), finished


def iter_with_eta(trials: list[Trial], plan: ComparisonPlan) -> Iterator[tuple[Trial, str]]:
    """Yield each trial with a text that gives the remaining time after it."""
    spent: list[float] = []
    to_run = [finished_result(trial) is None for trial in trials]
    for i, (trial, is_pending) in enumerate(zip(trials, to_run, strict=True)):
        n_left, start = sum(to_run[i + 1 :]), time.monotonic()
        mean = (
            sum(spent) / len(spent) if spent else plan.budget.amount if plan.budget.kind == "time" else None
        )
        eta = (
            tr(", about {time} left for the others", time=format_seconds(mean * n_left))
            if mean and n_left
            else ""
        )
        yield trial, eta
        if is_pending:
            spent.append(time.monotonic() - start)


def run_pending_trial(trial: Trial, plan: ComparisonPlan, stop: StopHandler, counter: str, eta: str) -> bool:
    """Run a trial in a subprocess unless it is finished; False if it was interrupted."""
    name = trial.design.name + (tr(", seed {seed}", seed=trial.seed) if len(plan.seeds) > 1 else "")
    result = finished_result(trial)
    if result is not None:
        print_status(f"{counter} {name}: {summarize_result(result, plan)} {tr('(finished before)')}")
        return True
    is_resumed = (trial.directory / "checkpoints").is_dir()
    print_status(f"{counter} {name}{tr(': continues') if is_resumed else ''}{eta}")
    write_trial_config(trial, plan)
    start = time.monotonic()
    code = run_subprocess(trial.directory, stop)
    if stop.is_requested:
        return False
    result = read_result(trial)
    if code and result is None:
        reason = f"its process ended with code {code}; see its last lines"
        if code in (-9, 137):
            reason = "killed by the system, most likely out of memory"
        result = {"status": "failed", "message": reason}
        write_json_file(trial.directory / RESULT_FILE, {**result, "again": True})
    assert result is not None, "a cell that ends well has a result"
    elapsed = format_seconds(time.monotonic() - start)
    print_status(tr("    {result} in {time}", result=summarize_result(result, plan), time=elapsed))
    return True


def write_trial_config(trial: Trial, plan: ComparisonPlan) -> None:
    """Write the settings of a trial. All seeds of a design take the number of steps of its first seed."""
    first = read_json_file(plan.trial_dir(trial.design, plan.seeds[0]) / STEPS_FILE) or {}
    (trial.directory / RESULT_FILE).unlink(missing_ok=True)
    write_json_file(
        trial.directory / TRIAL_FILE,
        {
            "recipe": trial.recipe.model_dump(mode="json"),
            "budget": [plan.budget.kind, plan.budget.amount],
            "tokenizer": str(ensure_tokenizer(trial.recipe, plan.out)),
            "steps": first.get("steps"),
        },
    )


def make_trial(plan: ComparisonPlan, design: Design, recipe: Recipe, seed: int) -> Trial:
    """Make a trial: its directory, and the recipe of the design with the seed and the shared token cache."""
    directory, shared = plan.trial_dir(design, seed), plan.out / "shared" / "tokens"
    update = {
        "train": recipe.train.model_copy(update={"seed": seed}),
        "data": recipe.data.model_copy(update={"cache_dir": recipe.data.cache_dir or shared}),
        "out": directory,
    }
    return Trial(design, seed, directory, recipe.model_copy(update=update))


def find_changed_keys(saved_recipe: JsonDict, recipe: Recipe) -> list[str]:
    """Keys in which a saved recipe differs from the current one, except those of storage locations.

    The saved recipe is parsed as a recipe, so that keys added since then have their default.
    """
    try:
        saved = Recipe.model_validate(saved_recipe)
    except ValidationError:
        return ["the recipe"]
    changed = [
        key
        for name in _RECIPE_SECTIONS
        for key in list_differences(getattr(saved, name), getattr(recipe, name), name)
    ]
    changed += [name for name in TOP_LEVEL_KEYS if getattr(saved, name) != getattr(recipe, name)]
    return [key for key in changed if key != "data.cache_dir"]


def read_result(trial: Trial) -> JsonDict | None:
    """Result of a trial; None if it has none."""
    return read_json_file(trial.directory / RESULT_FILE)


def finished_result(trial: Trial) -> JsonDict | None:
    """Result of a trial; None if the trial must run, which includes failures that may be temporary."""
    result = read_result(trial)
    return None if result is None or result.get("again") else result


def publish_results(plan: ComparisonPlan, results: dict[tuple[str, int], JsonDict]) -> list[JsonDict]:
    """Write the current rows as JSON, CSV and an HTML page, and return them."""
    rows = build_result_rows(plan, results)
    write_json_file(
        plan.out / "compare.json",
        {"task": plan.base.task.name, "budget": str(plan.budget), "seeds": list(plan.seeds), "rows": rows},
    )
    write_csv(plan.out / "compare.csv", rows)
    write_compare_page(plan.out / "compare.html", rows, plan)
    return rows


def describe_setup(plan: ComparisonPlan) -> JsonDict:
    """Settings that all rows of one table must share."""
    text = {
        split: fingerprint_files(plan.base, split)
        for split in ("train", "valid", "test")
        if getattr(plan.base.data, split)
    }
    budget = [plan.budget.kind, plan.budget.amount]
    return {"recipe": plan.base.model_dump(mode="json"), "budget": budget, "match": plan.match, "text": text}


def check_same_comparison(plan: ComparisonPlan) -> None:
    """Check that the directory has the same base recipe, budget and text; rows and seeds may be added."""
    if (plan.out / "checkpoints").is_dir() or (plan.out / "model.safetensors").is_file():
        raise UserError(f"{plan.out} is a run directory; choose another one with --output")
    check_output_dir(plan.out)
    saved, setup = read_json_file(plan.out / COMPARISON_FILE), describe_setup(plan)
    if saved is None:
        return
    changed = [name for name in ("budget", "match", "text") if saved.get(name) != setup[name]]
    changed += find_changed_keys(saved["recipe"], plan.base)
    if changed:
        raise UserError(
            f"{plan.out} has another comparison: {', '.join(changed)} differ{'s' * (len(changed) == 1)}; "
            "choose another directory with --output"
        )


def summarize_result(result: JsonDict, plan: ComparisonPlan) -> str:
    """Summary of a trial's result in one line."""
    if result["status"] != "done":
        return tr("failed: {message}", message=translate_message(result["message"]))
    main_metrics, baselines = [], result.get("baselines", {})
    for m in plan.task.measures[:2]:
        main_metrics.append(f"{m.column} {result[m.name]:.{m.digits}f}")
        if baseline := baselines.get(m.name):
            value = f"{baseline['value']:.{m.digits}f}"
            main_metrics[-1] += f" ({Baseline(**baseline).describe(value)})"
    return ", ".join([*main_metrics, tr("{count:,} steps", count=result["steps"])])


def format_plan(plan: ComparisonPlan) -> str:
    """List of the designs before they run."""
    seeds = f"{len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)} each"
    lines = [
        f"{len(plan.designs)} design{'s' * (len(plan.designs) > 1)}, {seeds}, {plan.budget}, to {plan.out}"
    ]
    width = max(len(row.name) for row in plan.designs)
    for row in plan.designs:
        description = f"cannot be built: {row.error}" if row.error else row.note or " ".join(row.changes)
        lines.append(f"  {row.name:<{width}}  {description}".rstrip())
    return "\n".join(lines)


class Comparison(NamedTuple):
    """Result of a comparison: its rows, best first, and its plan."""

    rows: list[JsonDict]
    plan: ComparisonPlan
    finished: bool  # False if interrupted by Ctrl-C

    @property
    def out(self) -> Path:
        """Directory with compare.html, compare.json, compare.csv and the trained runs."""
        return self.plan.out

    def __repr__(self) -> str:
        return f"{format_table(self.rows, self.plan)}\n\n{self.out / 'compare.html'}"


def run_comparison(
    recipe: Path,
    changes: list[str],
    *,
    vary: Mapping[str, Sequence[Any]],
    designs: Mapping[str, Sequence[str]],
    grid: bool,
    budget: str | None,
    seeds: int,
    match: str | None,
    out: Path | None,
) -> Comparison:
    """Train and measure every design; trials that are finished in the output directory are not repeated."""
    if match not in (None, "params"):
        raise UserError(f"match is {format_value(match)}: only 'params' is supported")
    if not isinstance(vary, Mapping) or not isinstance(designs, Mapping):
        raise UserError(
            "vary must map keys to lists of values, e.g. {'norm': ['layernorm', 'rmsnorm']}, and designs "
            "must map names to lists of overrides"
        )
    check_int("seeds", seeds, 1, MAX_SEEDS)
    if budget is not None and not isinstance(budget, str):
        raise UserError(
            f"budget is {format_value(budget)}; expected a time, steps, tokens or FLOPs in a string, such as "
            "'10m', '90s' or '2000steps'"
        )
    plan = make_plan(
        recipe,
        changes,
        [
            read_axis(f"{key}={','.join(_check_list(key, values, yaml_io.dump_yaml_value))}")
            for key, values in vary.items()
        ],
        [read_design(f"{name}: {' '.join(_check_list(name, texts))}") for name, texts in designs.items()],
        full_grid=grid,
        budget=read_budget(budget),
        seeds=seeds,
        match=match is not None,
        out=out,
    )
    plan = prepare_comparison(plan)
    if len(plan.designs) == len(plan.seeds) == 1:
        raise UserError(
            "one design alone cannot be compared; vary a key: vary={'norm': ['layernorm', 'rmsnorm']}, or "
            "add a design: designs={'wide': ['d_model=256', 'd_ff=512']}"
        )
    rows, finished = run_trials(plan)
    return Comparison(rows, plan, finished)


def _check_list(name: str, values: Sequence[Any], write: Callable[[Any], str] = str) -> list[str]:
    """The values as texts."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UserError(f"{name}: expected a list of values, got {format_value(values)}")
    return [value if isinstance(value, str) else write(value) for value in values]
