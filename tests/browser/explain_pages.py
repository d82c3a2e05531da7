"""Opening the page of ``explain``, and reading its numbers with their formulas."""

import math
import re

import torch

from polyhead.explain.walk_page import render_walk_page
from polyhead.viz.html_page import save_page

_READ_INSPECTOR = """function read() {
  const inspector = document.getElementById("inspector");
  const texts = (selector) => [...inspector.querySelectorAll(selector)].map((one) => one.textContent);
  return { title: inspector.querySelector("h2").textContent, value: inspector.querySelector("output").dataset.value,
    lines: texts("p.formula"), soft: texts("p.soft:not(.counting, .from *)"), words: texts("p.soft:not(.counting, .from *)").length, facts: texts("dt") };
}"""  # noqa: E501
# the inspector at every number of a part of the page
_READ_NUMBERS = """root => [...document.querySelectorAll(`${root} .pointable, ${root} .head-cell`)]
  .filter((one) => one.offsetParent).map((one) => { one.focus(); return read(); });
"""
# the inspector at some numbers of every drawing that arrow keys move in, with the name of the drawing
_READ_DRAWINGS = """() => [...document.querySelectorAll("#stage svg[tabindex]")].flatMap((svg) =>
  ["Home", "ArrowRight", "ArrowDown", "End", "ArrowUp", "ArrowUp", "ArrowLeft"].map((key) => {
    svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
    return { drawing: svg.dataset.focus, ...read() };
  }));
"""
_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
_FUNCTIONS = {name: getattr(math, name) for name in ("exp", "floor", "sqrt", "cos", "sin", "tanh", "ceil")}
_FUNCTIONS |= {"ln": math.log, "min": min, "max": max, "abs": abs, "σ": lambda x: 1 / (1 + math.exp(-x))}
_FUNCTIONS |= {"inf": math.inf, "Φ": lambda x: (1 + math.erf(x / math.sqrt(2))) / 2}


def open_walk(open_page, location, **options):
    """Open the page at a URL or path, and wait until it is drawn."""
    page = open_page(location, **options)
    page.wait_for_selector("html[data-ready]", state="attached")
    return page


def open_document(open_page, document, path, **options):
    return open_walk(open_page, save_page(path, render_walk_page(document)), **options)


# drawings that tell nothing of what is pointed at, by their names
_FIND_DEAD = """() => [...document.querySelectorAll("#stage svg, #stage canvas")].filter((one) => one.getClientRects().length && !one.matches(".swatch"))
  .filter((one) => {
    const button = one.closest("button");
    inspect(null);
    if (button) button.focus();
    else one.dispatchEvent(new KeyboardEvent("keydown", { key: "Home" }));
    return !explain.page.inspected && !one.matches(".glance") && !button?.matches(".thumb, .still");
  }).map((one) => `${explain.state.station}: ${one.getAttribute("class")}`);
"""  # noqa: E501


def find_dead_drawings(page):
    """The drawings of the station that show no formula of what is pointed at; pictures of heads choose."""
    return page.evaluate(_FIND_DEAD)


def go_to_station(page, path):
    """Go to the station of a module."""
    page.evaluate("station => explain.go({ station, card: '', key: null })", path)


def list_stations(page):
    return page.evaluate("explain.page.stations.map(({ id }) => id)")


def find_step(document, kind):
    """The first step of a kind."""
    return next(step for step in document["walk"] if step["kind"] == kind)


def find_lever(document, name):
    (lever,) = [one for one in document["levers"]["levers"] if one["name"] == name]
    return lever


def read_array(page, name):
    """An array as the page decodes it."""
    decode = "name => { const { shape, data } = explain.value(name); return [shape, [...data]]; }"
    shape, numbers = page.evaluate(decode, name)
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def read_data_values(locator):
    """The unrounded numbers of elements."""
    return [float(x) for x in locator.evaluate_all("all => all.map((element) => element.dataset.value)")]


def read_numbers(page, root):
    """Title, value and formulas of each number in a part of the page, as the inspector shows them."""
    return page.evaluate(_READ_NUMBERS + _READ_INSPECTOR, root)


def read_drawings(page):
    """Title, value and formulas of some numbers of each drawing of the station."""
    return page.evaluate(_READ_DRAWINGS + _READ_INSPECTOR)


def select_values(numbers, title):
    """The values of the numbers whose titles start so."""
    return [parse_value(one) for one in numbers if one["title"].startswith(title)]


def parse_value(number):
    return float(number["value"].replace("−", "-").replace("∞", "inf"))


def evaluate_formula(text):
    """The number that one side of a formula gives; None if it has variables or leaves terms out."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace("−", "-").replace("·10", "*10")
    text = re.sub(r"10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: f"10**({m[1].translate(_SUPERSCRIPTS)})", text)
    text = re.sub(r"([\d.]+)\u2009([kMG]?)B?", lambda m: f"({m[1]}*{_UNITS.get(m[2], 1)})", text)
    text = re.sub(r"√([\d.]+)", r"(\1**0.5)", text).replace("√(", "sqrt(").replace("×", "*")
    text = re.sub(r"\|([^|]+)\|", r"abs(\1)", text)
    text = text.replace("·", "*").replace("^", "**").replace("⌊", "floor(").replace("⌈", "ceil(")
    text = text.replace("⌋", ")").replace("⌉", ")").replace("∞", "inf")
    if "…" in text or set(re.findall(r"[^\W\d_]+", text)) - _FUNCTIONS.keys():
        return None
    return float(eval(text, {"__builtins__": {}}, _FUNCTIONS))


_NOTE = re.compile(r" \([\d,]+ other terms?\)")  # words in a line that are no part of its sum
_NUMBER = re.compile(r"−?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?|∞)")
_BARE_FACTOR = re.compile(r"(?:^|[ (])−[\d.]+[·^](?!10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹])")  # it is negative, without brackets
_WRONG = re.compile(r"NaN|undefined|null|Infinity|\[object")
_DIGITS = 4  # of a result, which may end in zeros that are not printed
_ERROR = 3e-6  # the error of stored numbers, for which a result may have fewer digits


def half_unit(text, least=_DIGITS):
    """Half a unit of the last digit of a printed number, which has ``least`` digits if zeros are left out."""
    mantissa, _, power = text.replace(",", "").replace("−", "").partition("·10")
    if mantissa == "∞" or float(mantissa) == 0:
        return 0.0
    n_digits = max(len(mantissa.replace(".", "").lstrip("0")), least - bool(power))
    exponent = math.floor(math.log10(float(mantissa))) + int(power.translate(_SUPERSCRIPTS) or 0)
    return 0.5 * 10.0 ** (exponent + 1 - n_digits) * (1 + 1e-9)


def check_line(line):
    """A line is true as it is printed: all of its sides are its result, to the digits of that.

    Returns the result and its rounding error; None for a line without a number at its end.
    """
    *left, result = _NOTE.sub("", line).split(" = ")
    assert "+ …" not in line and "≈" not in line, line
    if not _NUMBER.fullmatch(result):
        return None
    number, bound = evaluate_formula(result), max(half_unit(result), min(half_unit(result, 1), _ERROR))
    sides = [side for side in map(evaluate_formula, left) if side is not None]
    assert all(side == number or abs(side - number) <= bound for side in sides), (line, sides)
    assert not _BARE_FACTOR.search(line), line
    return number, bound, bool(sides)


def check_numbers(numbers):
    """Every number has words, a shape and a source; its lines are true as printed, and one ends in it.

    A number without formula is 0, or counted by the model of costs. Returns how many have a line of numbers
    that gives them.
    """
    n_complete = 0
    for one in numbers:
        assert one["lines"] or one["words"], one
        assert {"shape", "line of source"} <= set(one["facts"]), one
        assert not _WRONG.search(" ".join([one["title"], *one["lines"], *one["soft"]])), one
        results = [result for result in map(check_line, one["lines"]) if result is not None]
        value = parse_value(one)
        ends = [full for number, bound, full in results if number == value or abs(number - value) <= bound]
        assert ends or not value or math.isinf(value), one
        n_complete += any(ends)
    return n_complete
