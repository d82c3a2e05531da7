"""Opening the page of ``explain``, and reading its numbers with their formulas."""

import math
import re

import pytest
import torch

from polyhead.explain.walk_page import render_walk_page
from polyhead.viz.html_page import save_page

_READ_INSPECTOR = """function read() {
  const inspector = document.getElementById("inspector");
  const texts = (selector) => [...inspector.querySelectorAll(selector)].map((one) => one.textContent);
  return { title: inspector.querySelector("h2").textContent, value: inspector.querySelector("output").dataset.value,
    lines: texts("p.formula"), words: texts("p.soft").length, facts: texts("dt") };
}"""  # noqa: E501
# the inspector at every number of a part of the page
_READ_NUMBERS = """root => [...document.querySelectorAll(`${root} .pointable, ${root} .head-cell`)]
  .filter((one) => one.offsetParent).map((one) => { one.focus(); return read(); });
"""
# the inspector at some numbers of every drawing that arrow keys move in, with the name of the drawing
_READ_DRAWINGS = """() => [...document.querySelectorAll("#stage svg[tabindex]")].flatMap((svg) =>
  ["Home", "ArrowRight", "ArrowDown", "End", "ArrowUp", "ArrowLeft"].map((key) => {
    svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
    return { drawing: svg.dataset.focus, ...read() };
  }));
"""
_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
_FUNCTIONS = {name: getattr(math, name) for name in ("exp", "floor", "sqrt", "cos", "sin", "tanh", "ceil")}
_FUNCTIONS |= {"ln": math.log, "min": min, "max": max, "abs": abs, "σ": lambda x: 1 / (1 + math.exp(-x))}
_FUNCTIONS["inf"] = math.inf


def open_walk(open_page, location, **options):
    """Open the page at a URL or path, and wait until it is drawn."""
    page = open_page(location, **options)
    page.wait_for_selector("html[data-ready]", state="attached")
    return page


def open_document(open_page, document, path, **options):
    return open_walk(open_page, save_page(path, render_walk_page(document)), **options)


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


def check_numbers(numbers, rel=0.02, rel_terms=0):
    """Every number has words, a shape and a source, and both sides of its formulas are equal, as rounded.

    ``rel_terms`` allows a difference relative to the largest number of a formula: where large terms cancel.
    Returns how many numbers have a formula that is complete and ends in them.
    """
    n_complete = 0
    for one in numbers:
        assert one["lines"] or one["words"], one
        assert {"shape", "line of source"} <= set(one["facts"]), one
        assert not re.search(r"NaN|undefined|null|Infinity", " ".join([one["title"], *one["lines"]])), one
        is_complete = False
        for line in one["lines"]:
            sides = [side for side in map(evaluate_formula, line.split(" = ")) if side is not None]
            largest = max((float(x) for x in re.findall(r"\d+(?:\.\d+)?", line)), default=0)
            bound = max(1e-6, rel_terms * largest)
            assert all(side == pytest.approx(sides[-1], rel=rel, abs=bound) for side in sides), (line, one)
            is_value = bool(sides) and sides[-1] == pytest.approx(parse_value(one), rel=1e-2, abs=1e-6)
            is_complete |= len(sides) > 1 and is_value
        n_complete += is_complete
    return n_complete
