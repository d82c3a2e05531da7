"""Error messages for invalid command lines, in one line."""

from __future__ import annotations

from typing import Any

from polyhead.core.errors import did_you_mean
from polyhead.core.key_aliases import OPTION_ALIASES, aliased_keys, hint_text
from polyhead.core.messages import alias_hint, from_validation_error


def format_usage_error(verb: str, error: Any) -> str:
    """Format an error of the argument parser in one line: the word, the problem and the way out.

    The error is one of click, or of the copy of click in another package.
    """
    return f"{_parameter_prefix(error)}{_describe_reason(error)} (polyhead {verb} --help)"


def _parameter_prefix(error: Any) -> str:
    """Return ``--read-batch: `` if the error refers to one option or argument."""
    param = getattr(error, "param", None)
    if param is None:
        return ""
    name = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar or param.name
    return f"{name}: "


def _describe_reason(error: Any) -> str:
    if type(error).__name__ == "NoSuchOption":
        params = error.ctx.command.params
        names = [name for param in params for name in (*param.opts, *param.secondary_opts)]
        long_options = [name for name in names if name.startswith("--")]
        takes_keys = any(param.metavar == "KEY=VALUE" for param in params)
        return f"no option {error.option_name}{_option_hint(error.option_name, long_options, takes_keys)}"
    if type(error).__name__ == "MissingParameter":
        return "missing"
    if type(error.__cause__).__name__ == "ValidationError":  # pydantic's, which contains the value
        return str(from_validation_error(error.__cause__)).removesuffix(".")
    if "unexpected extra argument" in str(error.message):
        return f"{_lower_first(error.message)}{_extra_argument_hint(error.ctx.command.params)}"
    return _lower_first(error.message)


def _lower_first(message: object) -> str:
    reason = " ".join(str(message).replace("argument(s)", "argument").split()).removesuffix(".")
    return reason[:1].lower() + reason[1:]


def _extra_argument_hint(params: list[Any]) -> str:
    """Return a hint for an unexpected argument."""
    if any("TEXT" in str(param.metavar) for param in params):
        return "; quote a text of several words"
    if any("--output" in param.opts for param in params):
        return "; for an output file use --output FILE"
    return ""


def _option_hint(typed_option: str, known_options: list[str], takes_keys: bool) -> str:
    """Suggest an option, also for another toolkit's name of it, or a key of the recipe."""
    name = typed_option.lstrip("-")
    for key in aliased_keys(name):
        option = f"--{key.rpartition('.')[2].replace('_', '-')}"
        if option in known_options:
            return hint_text({key: option})
    similar = did_you_mean(typed_option, known_options, cutoff=0.85)
    if takes_keys and not similar:
        from polyhead.config.recipe import Recipe

        section, dot, _ = name.partition(".")
        field_hint = f"; did you mean {name!r}?" if name in Recipe.model_fields else ""
        key = (
            "."
            if dot and section in Recipe.model_fields
            else field_hint or alias_hint(name.replace("-", "_"), Recipe)
        )
        if key:
            return f"{key} Recipe keys are written KEY=VALUE"
    if aliases := [
        f"--{option}" for option in OPTION_ALIASES.get(name, "").split() if f"--{option}" in known_options
    ]:
        return f"; did you mean {aliases[0]!r}?"
    # compare without the dashes that all options share
    return similar or did_you_mean(
        name, [option.lstrip("-") for option in known_options], cutoff=0.6, prefix="--"
    )
