"""What a verb was given and does not take, said in one line."""

from __future__ import annotations

from typing import Any

from polyhead.elsewhere import keys_of, told
from polyhead.errors import called, explain, nearest


def said(verb: str, error: Any) -> str:
    """One line for an error of the parser (click's, whichever package it comes in): the word, what is wrong, the way out."""
    return f"{_place(error)}{_reason(error)} (polyhead {verb} --help)"


def _place(error: Any) -> str:
    """``--chunk: `` where the error is of one option or argument."""
    param = getattr(error, "param", None)
    if param is None:
        return ""
    name = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar or param.name
    return f"{name}: "


def _reason(error: Any) -> str:
    if type(error).__name__ == "NoSuchOption":
        known = [name for param in error.ctx.command.params for name in param.opts if name.startswith("--")]
        takes_keys = any(param.metavar == "KEY=VALUE" for param in error.ctx.command.params)
        return f"no option {error.option_name}{_meant(error.option_name, known, takes_keys)}"
    if type(error).__name__ == "MissingParameter":
        return "missing"
    if type(error.__cause__).__name__ == "ValidationError":  # pydantic's, which knows what came
        return str(explain(error.__cause__)).removesuffix(".")
    reason = " ".join(str(error.message).replace("argument(s)", "argument").split()).removesuffix(".")
    return reason[:1].lower() + reason[1:]


def _meant(typed: str, known: list[str], takes_keys: bool) -> str:
    """The option that was meant, also by one who has its name from elsewhere, or the key of a recipe."""
    name = typed.lstrip("-")
    for key in keys_of(name):
        option = f"--{key.rpartition('.')[2].replace('_', '-')}"
        if option in known:
            return told({key: option})
    alike = nearest(typed, known, cutoff=0.85)
    if takes_keys and not alike:
        from polyhead.recipe import Recipe

        section, dot, _ = name.partition(".")
        key = "." if dot and section in Recipe.model_fields else called(name.replace("-", "_"), Recipe)
        if key:
            return f"{key} Keys of the recipe are written KEY=VALUE"
    # the dashes that all have in common make no likeness
    return alike or nearest(typed, known, cutoff=0.6)
