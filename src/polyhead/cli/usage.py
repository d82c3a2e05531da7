"""What a verb was given and does not take, said in one line."""

from __future__ import annotations

from typing import Any

from polyhead.errors import explain, nearest


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
        # the dashes that all have in common make no likeness
        return f"no option {error.option_name}{nearest(error.option_name, known, cutoff=0.6)}"
    if type(error).__name__ == "MissingParameter":
        return "missing"
    if type(error.__cause__).__name__ == "ValidationError":  # pydantic's, which knows what came
        return str(explain(error.__cause__)).removesuffix(".")
    reason = " ".join(str(error.message).replace("argument(s)", "argument").split()).removesuffix(".")
    return reason[:1].lower() + reason[1:]
