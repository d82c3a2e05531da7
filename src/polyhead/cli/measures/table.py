"""Which measurement is of which run, and which options it understands: those that its function has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from polyhead.cli.measures import classes, language, recovered, translations
from polyhead.cli.options import typed
from polyhead.errors import UserError
from polyhead.run import Run


class Measure(NamedTuple):
    """A kind of measurement. The keyword-only parameters of ``show`` are the options that it understands."""

    run: str  # what such a run does or is: "is a classifier"
    of: str  # what it is measured on: "labelled texts"
    show: Callable[..., None]  # (run, files, split, **options): prints the table

    @property
    def options(self) -> set[str]:
        named = inspect.signature(self.show).parameters.values()
        return {one.name for one in named if one.kind is one.KEYWORD_ONLY}


MEASURES = {
    "classifier": Measure("is a classifier", "labelled texts", classes.measure),
    "decoder": Measure("is a language model", "plain text", language.measure),
    "recovered": Measure("learned to recover what is hidden", "hidden tokens", recovered.measure),
    "chat": Measure("learned from conversations", "conversations", recovered.measure),
    "encoder-decoder": Measure("is an encoder-decoder", "translations", translations.measure),
}
RECOVERED = ("masked-lm", "replaced-tokens", "denoising")  # tasks


def measure_of(run: Run) -> Measure:
    """How a run is measured; what a bare encoder is good for nobody has said: a UserError."""
    kind = run.kind
    if run.recipe and run.recipe.task.name in RECOVERED and kind != "classifier":
        kind = "recovered"
    elif run.recipe and run.recipe.task.name == "chat":
        kind = "chat"
    if kind not in MEASURES:
        raise UserError(
            "this run is an encoder without a recipe, so nothing says what is to be measured; "
            "train from it (start), or use fill-mask or embed"
        )
    return MEASURES[kind]


def understood(measure: Measure, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were typed; one that this measurement has no use for is a UserError that says of what it is."""
    given = typed(**options)
    unfit: dict[str, list[str]] = {}
    for name in given.keys() - measure.options:
        of = " and ".join(other.of for other in MEASURES.values() if name in other.options)
        unfit.setdefault(of, []).append("--" + name.replace("_", "-"))
    if unfit:
        own = f"this run {measure.run} and is measured on {measure.of}"
        raise UserError(
            "\n".join(f"{', '.join(sorted(names))}: of {of}; {own}" for of, names in sorted(unfit.items()))
        )
    return given
