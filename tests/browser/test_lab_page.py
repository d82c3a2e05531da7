"""The page of an experiment in a browser: claims, curves, dots, fronts and tables, in both languages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import CORNERS, SCREENS, check_accessibility
from tests.browser.reading import find_english, run_command

from polyhead.core import i18n
from polyhead.lab.page import render_lab_page
from polyhead.lab.result import Claim, DotPlot, ExperimentResult, LinePlot, ParetoPlot, ResultTable
from polyhead.viz.plot import Curve

Open = Callable[..., Any]

NAN = float("nan")
RESULT = ExperimentResult(
    "Why attention divides by sqrt(d_k)",
    "Attention treats its input as a set, so positions must be "
    "encoded. Some encodings still work beyond the training length, others do not.",
    [
        Claim("T5's buckets extrapolate.", "Press et al., 2022", "At 8 tokens, token by token takes 2 times "
            "as long.", True),
        Claim("Dead units cost quality.", "implied where they are called a problem", "relu: 1.5 against 1.7",
            False),
        Claim("Pre-norm trains without warm-up.", "Xiong et al., 2020", "The same ratio: 3.1 (about equal: "
            "within a factor of 2).", None),
    ],
    [
        LinePlot("Variance of q.k", "step", [Curve("alibi", [(1, 4.0), (10, 2.5), (100, 2.0)]), Curve("rope",
            [(1, 5.0), (100, 1.0)])], log=True),
        DotPlot("Held-out loss on a recall task", "nats per token", {"alibi": [1.0, 2.0], "rope": [NAN, 3.0],
            "shaw": [NAN, NAN]}, "One small dot per text."),
        ParetoPlot("Divergence and bytes", "peak KiB per text", "KL divergence, nats per token",
              {"h2o": [("h2o 1/4", 4.0, 0.2), ("h2o 1/8", 2.0, 0.4)], "window": [("window 1/4", 4.0, 0.5)]}),
        ResultTable("All numbers", ("design", "loss"), [("alibi", 12000), ("rope", 0.03125)],
            "One small dot per text."),
    ],
    "Recall: encoder-decoders of 2+2 layers, d_model 64, 250 steps, 3 seeds, feature map elu + 1.",
)  # fmt: skip
NAMES = {
    "alibi rope shaw relu h2o window T5 KiB KL sqrt(d_k) q.k d_model elu pre-norm",
    *(claim.source for claim in RESULT.claims),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write the page in a language."""

    def write_one(language: str) -> Path:
        i18n.set_language(language)
        try:
            html = render_lab_page(RESULT, True, "polyhead experiments")
        finally:
            i18n.set_language(None)
        (tmp_path / f"{language}.html").write_text(html, encoding="utf-8")
        return tmp_path / f"{language}.html"

    return write_one


def test_each_claim_stands_with_its_verdict_and_each_table_with_its_numbers(
    write: Callable[[str], Path], open_page: Open
) -> None:
    page = open_page(write("en"))
    assert page.locator(".claims .sentence-of").all_inner_texts() == [
        claim.sentence for claim in RESULT.claims
    ]
    assert page.locator(".claims .verdict").all_text_contents() == [claim.verdict for claim in RESULT.claims]
    assert page.locator(".figures td").all_inner_texts() == ["alibi", "12,000", "rope", "0.0312"]


def test_the_pointer_reads_a_curve_over_a_logarithmic_axis(
    write: Callable[[str], Path], open_page: Open
) -> None:
    page = open_page(write("en"))
    figure = page.locator("figure.plot")
    chart = figure.locator("svg").first
    chart.scroll_into_view_if_needed()
    start, end = (float(word) for word in chart.get_attribute("data-x").split()[2:4])
    box = chart.bounding_box()
    scale = box["width"] / float(chart.get_attribute("viewBox").split()[2])
    keys = figure.locator(".key output")
    for share, step, alibi in ((0.02, "1", "4"), (0.5, "10", "2.5"), (0.98, "100", "2")):
        chart.hover(position={"x": (start + share * (end - start)) * scale, "y": box["height"] / 2})
        assert (figure.locator(".at output").inner_text(), keys.first.inner_text()) == (step, alibi)
    page.mouse.move(1, 1)
    assert keys.all_inner_texts() == ["2", "1"]


def test_a_point_of_a_front_names_its_values(write: Callable[[str], Path], open_page: Open) -> None:
    page = open_page(write("en"))
    titles = page.locator("svg.pareto").first.locator("title").all_text_contents()
    assert titles[0] == "h2o 1/4: KL divergence, nats per token 0.2, peak KiB per text 4"
    assert len(titles) == 3


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_barrier_stands_in_the_page(language: str, write: Callable[[str], Path], open_page: Open) -> None:
    check_accessibility(open_page(write(language)), *(SCREENS if language == "en" else CORNERS))


def test_the_chinese_page_has_no_english(write: Callable[[str], Path], open_page: Open) -> None:
    page = open_page(write("zh"))
    assert find_english(page, NAMES | {"polyhead experiments"}) == set()


def test_an_experiment_is_written_in_chinese(tmp_path: Path, open_page: Open) -> None:
    run_command("zh", "experiments", "parallelism", "--quick", "--out", str(tmp_path))
    page = open_page(tmp_path / "parallelism.html")
    cited = set(page.locator(".cited").all_inner_texts())
    names = {"polyhead experiments parallelism seed quick torch cpu", "d_model fp32 logit", "Polyhead"}
    assert find_english(page, cited | names) == set()
    check_accessibility(page, *CORNERS)
