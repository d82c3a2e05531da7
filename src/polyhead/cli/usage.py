"""What a verb was given and does not take, said in one line."""

from __future__ import annotations

from typing import Any

from polyhead.elsewhere import OPTIONS, keys_of, told
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
        params = error.ctx.command.params
        names = [name for param in params for name in (*param.opts, *param.secondary_opts)]
        known = [name for name in names if name.startswith("--")]
        takes_keys = any(param.metavar == "KEY=VALUE" for param in params)
        return f"no option {error.option_name}{_meant(error.option_name, known, takes_keys)}"
    if type(error).__name__ == "MissingParameter":
        return "missing"
    if type(error.__cause__).__name__ == "ValidationError":  # pydantic's, which knows what came
        return str(explain(error.__cause__)).removesuffix(".")
    if "unexpected extra argument" in str(error.message):
        return f"{_lowered(error.message)}{_instead_of_extra(error.ctx.command.params)}"
    return _lowered(error.message)


def _lowered(message: object) -> str:
    reason = " ".join(str(message).replace("argument(s)", "argument").split()).removesuffix(".")
    return reason[:1].lower() + reason[1:]


def _instead_of_extra(params: list[Any]) -> str:
    """What one who gave a word too many may have meant."""
    if any("TEXT" in str(param.metavar) for param in params):
        return "; a text of several words is put in quotes"
    if any("--output" in param.opts for param in params):
        return "; a file to write to is given with --output FILE"
    return ""


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
        own = f"; did you mean {name!r}?" if name in Recipe.model_fields else ""
        key = "." if dot and section in Recipe.model_fields else own or called(name.replace("-", "_"), Recipe)
        if key:
            return f"{key} Keys of the recipe are written KEY=VALUE"
    if meant := [f"--{option}" for option in OPTIONS.get(name, "").split() if f"--{option}" in known]:
        return f"; did you mean {meant[0]!r}?"
    # the dashes that all have in common make no likeness
    return alike or nearest(name, [option.lstrip("-") for option in known], cutoff=0.6, before="--")
