"""The pieces of a report: groups, marks, speeds, and that all of its text has a Chinese translation."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import polyhead
from polyhead.core.i18n import load_catalog
from polyhead.viz import run_page, samples_section
from polyhead.viz.run_page import _METRIC_NAMES, STATE_TITLES, add_learning_speed
from polyhead.viz.run_record import RunRecord
from polyhead.viz.runs_page import disambiguate_names
from polyhead.viz.samples import Breakdown, Confusion, Group, Samples, group_by_length, spread_by_length
from polyhead.viz.samples_section import breakdown_section, examples_section, mark_words
from polyhead.viz.training_report import SMALL_CHARTS

ROOT = Path(polyhead.__file__).parent
PAGES = ("viz/run_page.py", "viz/runs_page.py", "viz/samples_section.py", "serve/http/run_pages.py",
         "train/report.py", "cli/report.py")  # fmt: skip


def literals(path: Path, *functions: str) -> set[str]:
    """The first argument of every call of these functions, where it is a literal."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in functions]
    return {
        call.args[0].value
        for call in named
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }


def test_every_text_of_the_pages_is_in_the_chinese_catalog() -> None:
    texts = set().union(*(literals(ROOT / name, "tr") for name in PAGES))
    texts |= {run_page.LOSS_HELP, *STATE_TITLES.values(), *_METRIC_NAMES.values(), *SMALL_CHARTS.values()}
    texts |= set(re.findall(r'\bt\("([^"]+)"', (ROOT / "viz/report.js").read_text()))
    for module in (ROOT / "train/samples").glob("*.py"):
        tree = ast.parse(module.read_text())
        texts |= literals(module, "break_down")
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            given = {word.arg: word.value for word in call.keywords}
            texts |= {v.value for k, v in given.items() if k == "about" and isinstance(v, ast.Constant)}
            if isinstance(columns := given.get("columns"), ast.Tuple):
                texts |= {name.value for name in columns.elts if isinstance(name, ast.Constant)}
    assert len(texts) > 80
    assert texts - load_catalog("zh").keys() == set()


def test_groups_by_length_are_of_about_one_size_and_split_no_length() -> None:
    lengths = [1, 1, 1, 1, 1, 2, 3, 4, 9, 9, 20]
    groups = group_by_length(lengths)
    assert sorted(index for some in groups.values() for index in some) == list(range(len(lengths)))
    assert {name: [lengths[i] for i in some] for name, some in groups.items()} == {
        "1": [1] * 5, "2": [2], "3–9": [3, 4, 9, 9], "20": [20]
    }  # fmt: skip
    assert group_by_length([]) == {} and group_by_length([7]) == {"7": [0]}


def test_examples_are_spread_from_short_to_long() -> None:
    texts = ["x" * n for n in (5, 1, 4, 2, 3, 6)]
    assert [len(texts[i]) for i in spread_by_length(texts, 3)] == [2, 4, 6]
    assert [len(texts[i]) for i in spread_by_length(texts, 99)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("text", "other", "wanted"),
    [
        ("a red dog", "a blue dog", "a <del>red</del> dog"),
        ("我喜欢狗", "我喜欢猫", "我喜欢<del>狗</del>"),
        ("don't <b>", "do <b>", "<del>don&#x27;t</del> &lt;b&gt;"),
        ("same", "same", "same"),
        ("", "x", ""),
    ],
)
def test_whole_words_are_marked_and_characters_where_there_are_no_blanks(
    text: str, other: str, wanted: str
) -> None:
    assert mark_words(text, other, "del") == wanted


def test_samples_are_read_back_as_they_were_written() -> None:
    samples = Samples(
        description="x", columns=("a", "b", "c"), differences="whole",
        examples=[{"source": "s", "output": "o", "reference": "r"}],
        breakdowns=[Breakdown("chrF", "class", [Group("1–2", 3, 4.5)])],
        confusion=Confusion(["n", "p"], [[1, 0], [2, 3]]),
    )  # fmt: skip
    assert Samples.from_json(json.loads(json.dumps(samples.to_json()))) == samples
    assert Samples.from_json({}) == Samples()


def test_hostile_text_stays_text() -> None:
    bad = "<script>alert(1)</script>"
    samples = Samples(
        examples=[{"source": bad, "output": bad, "reference": "x", "note": bad}], description=bad, columns=(bad,) * 3,
        breakdowns=[Breakdown(bad, bad, [Group(bad, 1, 1.0)])], confusion=Confusion([bad], [[1]]),
    )  # fmt: skip
    for section in (examples_section(samples), breakdown_section(samples)):
        assert section.body and "<script" not in section.body


def test_the_speed_of_learning_leaves_evaluations_out() -> None:
    """100 tokens a step, 0.1 s of learning a step; 4 s of evaluation lie in the second row's time."""
    rows = [
        {"split": "train", "step": 10, "tokens_per_s": 1000.0, "ms_per_step": 100.0, "seconds": 1.0},
        {"split": "valid", "step": 10, "seconds": 4.0},
        {"split": "train", "step": 20, "tokens_per_s": 200.0, "ms_per_step": 500.0, "seconds": 2.0},
    ]
    found = add_learning_speed(rows)
    assert [row["tokens_per_s"] for row in found if row["split"] == "train"] == pytest.approx([1000, 1000])
    assert found[1] == rows[1]


def test_runs_of_one_name_are_told_apart_by_their_paths() -> None:
    records = [RunRecord(Path(place), "x", [], {}, {}, {}, False) for place in ("a/x", "b/x")]
    assert [record.name for record in disambiguate_names(records)] == ["a/x", "b/x"]


def test_examples_of_all_lengths_are_shown_and_the_rest_is_folded() -> None:
    examples = [{"source": f"<{i}>", "output": "a", "reference": "a"} for i in range(30)]
    body = examples_section(Samples(examples=examples)).body
    open_part, folded = body.split("<details>")
    assert open_part.count("<tr class") == 10 and folded.count("<tr class") == 20
    assert samples_section._VISIBLE_EXAMPLES == 12
