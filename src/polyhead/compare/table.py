"""The rows as text: two tables that fit 120 columns, quality and cost, and a CSV of everything."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len

from polyhead.compare.plan import Plan
from polyhead.compare.results import alike
from polyhead.compare.tasks.base import Measure
from polyhead.compare.unlearned import baseline_rows, describe_unlearned, is_unlearned
from polyhead.core.i18n import tr
from polyhead.files import replace_file

Row = Mapping[str, Any]
WIDTH, NAMES = 120, 32  # columns of a line, and those that names get at least, if they are as long
LEFT_OUT = ("curves", "recipe", "signatures", "changes", "rank", "units", "baselines")  # not in the CSV
TEXTS = {"test": "test", "valid": "validation"}  # of a split, in words
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def table(rows: Sequence[Row], plan: Plan, bold: bool = False) -> str:
    """Quality, cost, and what went wrong; the base is marked with an arrow."""
    done = [row for row in rows if row["status"] == "done"]
    rest = [row for row in rows if row["status"] != "done" or row["note"] or row["message"]]
    many = len(plan.seeds) > 1
    parts = []
    if done:
        measures = plan.task.measures
        others = ", ".join(measure.column for measure in measures[1:])
        first = "loss, ppl" if measures[0].of_tokens else "loss"
        apart = [measure.column for measure in measures if measure not in alike(done, measures)]
        paid = [
            (price.column, price.show) for price in prices(plan.task.words.each) if told_of(done, price.show)
        ]
        text = TEXTS[done[0]["split"]]
        judged = [*done, *baseline_rows(done, measures)]
        columns = [*_learned_columns(done), *_quality_columns(measures, many)]
        parts.append(_grid(judged, _fitting(judged, columns), bold))
        parts.append(_grid(done, paid, bold))
        parts.append(
            f"{first}: validation text. {others}: {text} text, with the 95 % interval of 1,000 bootstrap resamples."
            + (f"\n{', '.join(apart)}: not to be compared where tokens differ." if apart else "")
            + "\np: chance of a difference from the base as large (paired bootstrap); * below 0.05."
            + ("\n±: standard deviation over the seeds." if many else "")
        )
        if unlearned := describe_unlearned(done, measures):
            parts.append(textwrap.fill(unlearned, WIDTH))
    if rest:
        told = (textwrap.fill(f"{row['name']}: {said(row)}", WIDTH, subsequent_indent="    ") for row in rest)
        parts.append("\n".join(told))
    return "\n\n".join(parts)


def told_of(rows: Sequence[Row], show: Callable[[Row], str]) -> bool:
    """Whether a column says anything of any row."""
    return any(show(row) != "-" for row in rows)


def said(row: Row) -> str:
    """Why a row has no numbers, or what should be known about it."""
    words = {"refused": "cannot be built: ", "failed": "failed: ", "waiting": "not run yet", "done": ""}
    return words[row["status"]] + (row["message"] or row["note"])


def short(value: float | None, digits: int = 3) -> str:
    """1,234,567 as 1.23M; a dash where there is nothing."""
    if value is None:
        return "-"
    for scale, letter in SCALES:
        if abs(value) >= scale * 0.9995:
            return f"{_figures(value / scale, digits)}{letter}"
    return _figures(value, digits)


def _figures(value: float, digits: int) -> str:
    """Three figures, never in powers of ten."""
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole)}f}" if value else "0"


def memory(value: float | None) -> str:
    """Bytes in GiB or MiB."""
    return (
        "-" if value is None else f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
    )


def cache(row: Row) -> str:
    """Bytes of the cache: for each token, or for the whole sequence where they are constant."""
    if row["cache_per_token"] is None:
        return "-"
    if not row["cache_per_token"]:
        return f"{short(row['cache_constant'])} const"
    return short(row["cache_per_token"])


def seconds(value: float | None) -> str:
    """A duration as ``12:34`` or ``1:02:03``."""
    if value is None:
        return "-"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def significance(p: float | None) -> str:
    """p, with a star where it is below 0.05."""
    return "" if p is None else f"{p:.3f}{'*' if p < 0.05 else ' '}"


def percent(value: float | None) -> str:
    """A share of one as a percentage."""
    return "-" if value is None else f"{100 * value:.1f}%"


Column = tuple[str, Callable[[Row], str]]


def _learned_columns(rows: Sequence[Row]) -> list[Column]:
    """The mark of designs that have not learned, where there are any."""
    if not any(map(is_unlearned, rows)):
        return []
    return [("", lambda row: tr("not learned") if is_unlearned(row) else "")]


def _quality_columns(measures: Sequence[Measure], many: bool) -> list[Column]:
    """The loss with its perplexity, then every other measure with its interval; seeds of the first two."""

    def value(of: Measure) -> Column:
        return of.column, lambda row: _fixed(row[of.name], of.digits)

    def spread(of: Measure) -> Column:
        return "±", lambda row: _fixed(row[f"{of.name}_spread"], of.ends)

    def between(of: Measure) -> Column:
        return "95 %", lambda row: "-".join(_fixed(end, of.ends) for end in row[f"{of.name}_interval"] or ())

    def p(of: Measure) -> Column:
        return "p", lambda row: significance(row[f"{of.name}_p"])

    columns: list[Column] = []
    for i, of in enumerate(measures):
        columns += [value(of), *([spread(of)] if many and i < 2 else [])]
        columns += [between(of), p(of)] if i else [p(of)]
        if not i and of.of_tokens:
            columns.append(("ppl", lambda row: "-" if row["ppl"] is None else _figures(row["ppl"], 3)))
    return columns


class Price(NamedTuple):
    """A cost of a design: its name here and on the page, the key that it comes from where that is drawn as a bar, the text."""

    column: str
    title: str
    key: str
    show: Callable[[Row], str]


def prices(each: str) -> list[Price]:
    """What a design costs, by what is predicted: a token or a text."""
    speed = f"{each.capitalize()}s/s, training"
    of_each = f"FLOPs/{'tok' if each == 'token' else each}"
    return [
        Price("params", "Parameters", "parameters", lambda row: short(row["parameters"])),
        Price(of_each, f"FLOPs a {each}", "flops_per_token", lambda row: short(row["flops_per_token"])),
        Price("steps", "Steps", "", lambda row: f"{row['steps']:,.0f}"),
        Price("time", "Time", "seconds", lambda row: seconds(row["seconds"])),
        Price("train/s", speed, "train_tokens_per_s", lambda row: short(row["train_tokens_per_s"])),
        Price(
            "decode/s",
            "Tokens/s, decoding",
            "decode_tokens_per_s",
            lambda row: short(row["decode_tokens_per_s"]),
        ),
        Price("memory", "Memory", "memory", lambda row: memory(row["memory"])),
        Price("cache B/tok", "Cache, B a token", "cache_per_token", cache),
        Price("skipped", "Skipped", "", lambda row: f"{row['skipped']}"),
        Price("dead", "Dead units", "", lambda row: percent(row["dead"])),
    ]


def _fitting(rows: Sequence[Row], columns: Sequence[Column]) -> list[Column]:
    """As many columns as leave room for the names: the last intervals go first, which the page has all."""
    kept = list(columns)
    names = min(NAMES, max(len(row["name"]) for row in rows))
    while WIDTH - 3 - _widths(rows, kept) < names:
        ends = [i for i, (title, _) in enumerate(kept) if title == "95 %"]
        if not ends:
            break
        del kept[ends[-1]]
    return kept


def _widths(rows: Sequence[Row], columns: Sequence[Column]) -> int:
    """What the columns of numbers take of a line."""
    return sum(2 + max(len(title), *(cell_len(show(row)) for row in rows)) for title, show in columns)


def _fixed(value: float | None, digits: int) -> str:
    """So many digits after the point; three figures where that would be long, as perplexity is at first."""
    return "-" if value is None else f"{value:.{digits}f}" if abs(value) < 1e5 else short(value)


def _grid(rows: Sequence[Row], columns: Sequence[Column], bold: bool) -> str:
    """Aligned columns, names on the left and numbers on the right."""
    head = ["", "design", *(title for title, _ in columns)]
    cells = [["->" if row["base"] else "", row["name"], *(show(row) for _, show in columns)] for row in rows]
    room = max(NAMES // 2, WIDTH - 3 - _widths(rows, columns))
    cells = [[mark, clipped(name, room), *rest] for mark, name, *rest in cells]
    widths = [max(cell_len(line[i]) for line in [head, *cells]) for i in range(len(head))]
    lines = []
    for line in [head, *cells]:
        blanks = [" " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True)]
        left = [text + blank for text, blank in zip(line[:2], blanks[:2], strict=True)]
        right = [blank + text for text, blank in zip(line[2:], blanks[2:], strict=True)]
        text = "  ".join([" ".join(left), *right]).rstrip()
        lines.append(f"\033[1m{text}\033[0m" if bold and line[0] else text)
    return "\n".join(lines)


def clipped(name: str, width: int) -> str:
    """A name that fits into its column: of a longer one the middle is left out, since names differ at their ends."""
    tail = width // 3
    return name if len(name) <= width else f"{name[: width - 1 - tail]}…{name[-tail:]}"


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Every number of every row; an interval is two columns."""
    flat = [_flat(row) for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in flat for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    replace_file(path, out.getvalue().encode())


def _flat(row: Row) -> dict[str, Any]:
    flat = {f"{name}_baseline": one["value"] for name, one in (row.get("baselines") or {}).items()}
    for key, value in row.items():
        if key in LEFT_OUT:
            continue
        if key.endswith("_interval"):
            flat[f"{key.removesuffix('_interval')}_low"], flat[f"{key.removesuffix('_interval')}_high"] = (
                value or ("", "")
            )
        else:
            flat[key] = value
    return flat
