"""The interface of a lever: to which models it applies, its settings, and the model run that way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, NamedTuple

from torch import Tensor

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value, unknown_name_error
from polyhead.explain.levers.comparison import TOP_K
from polyhead.explain.levers.lever_input import LeverInput, copy_modules
from polyhead.models import Model

Setting = dict[str, Any]
"""The values of a lever's fields; a field that is missing has its default."""

_FILE_OPTIONS = ("projection",)

FieldKind = Literal["number", "integer", "choice", "boolean", "part"]


class Field(NamedTuple):
    """A value that a lever can be set to. A "part" is a part of the registry with options, as in a recipe."""

    name: str
    kind: FieldKind
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    values: Sequence[str] = ()

    def check(self, lever: str, value: Any) -> Any:
        """The value; a UserError if it is of another type, outside of the range, or unknown."""
        name = f"{self.name} of lever {lever!r}"
        if self.kind == "boolean" and not isinstance(value, bool):
            raise UserError(f"{name} must be true or false, got {format_value(value)}")
        if self.kind == "choice" and value not in self.values:
            raise unknown_name_error(name, str(value), self.values)
        if self.kind in ("number", "integer"):
            kinds = (int,) if self.kind == "integer" else (int, float)
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            lowest, highest = self.minimum, self.maximum
            if (
                not is_number
                or not (lowest is None or value >= lowest)
                or not (highest is None or value <= highest)
            ):
                article = "an integer" if self.kind == "integer" else "a number"
                raise UserError(
                    f"{name} must be {article} from {lowest:g} to {highest:g}, got {format_value(value)}"
                )
        return self._check_part(name, value) if self.kind == "part" else value

    def _check_part(self, name: str, value: Any) -> Any:
        """A part by the names of ``values`` alone, without files and with numbers up to the maximum.

        A request must not load a plug-in, open a file, or allocate much memory.
        """
        choice = Choice.from_config(value)
        if choice.name not in self.values:
            raise unknown_name_error(name, choice.name, self.values)
        for option, number in choice.options.items():
            if option in _FILE_OPTIONS and number is not None:
                raise UserError(f"{name}: option {option!r} names a file, which a lever does not open")
            if isinstance(number, int | float) and self.maximum is not None and abs(number) > self.maximum:
                raise UserError(f"{name}: option {option!r} must be at most {self.maximum:g}, got {number}")
        return value


class LeverOutput(NamedTuple):
    """The logits of the changed model (R, V), and what they are compared with."""

    logits: Tensor
    baseline: Tensor | None = None  # (R, V); None: the logits of the plain model
    baseline_setting: Setting | None = None
    is_comparable: Sequence[bool] | None = None  # (R,); None: all rows
    detail: dict[str, Any] | None = None


class Lever(NamedTuple):
    """One way to run a model differently."""

    name: str
    group: str
    find_obstacle: Callable[[LeverInput], str]  # why it does not apply to this model or text; "" if it does
    list_fields: Callable[[LeverInput], list[Field]]
    list_cases: Callable[[LeverInput], list[Setting]]  # the settings that a file has
    compute: Callable[[LeverInput, Setting], LeverOutput]
    top_k: int = TOP_K  # tokens listed of each row

    def check_setting(self, lever_input: LeverInput, setting: Mapping[str, Any]) -> Setting:
        """The setting with the defaults of missing fields; a UserError for an unknown field or value."""
        fields = {field.name: field for field in self.list_fields(lever_input)}
        for name in setting:
            if name not in fields:
                raise unknown_name_error(f"field of lever {self.name!r}", name, fields)
        checked = {name: setting.get(name, field.default) for name, field in fields.items()}
        return {name: fields[name].check(self.name, value) for name, value in checked.items()}


def run_changed(
    change: Callable[[Model, LeverInput, Setting], None],
) -> Callable[[LeverInput, Setting], LeverOutput]:
    """The ``compute`` of a lever that changes a copy of the model, which shares the weights."""

    @wraps(change)
    def compute(lever_input: LeverInput, setting: Setting) -> LeverOutput:
        model = copy_modules(lever_input.model)
        change(model, lever_input, setting)
        return LeverOutput(lever_input.compute_logits(model))

    return compute
