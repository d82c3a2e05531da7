"""The page of an experiment in a browser: claims, curves, dots, fronts and tables, in both languages."""

import pytest
from tests.browser.conftest import check_accessibility
from tests.browser.page_texts import find_english, run_command

from polyhead.core.i18n import use_language
from polyhead_lab.page import render_lab_page
from polyhead_lab.registry import Claim, DotPlot, ExperimentResult, LinePlot, ParetoPlot, ResultTable

NAN = float("nan")
DOTS = "One small dot per text."
CURVES = {"alibi": [(1, 4.0), (10, 2.5), (100, 2.0)], "rope": [(1, 5.0), (100, 1.0)]}
FINDINGS = ("At 8 tokens, token by token takes 2 times as long.", "relu: 1.5 against 1.7")
FINDINGS += ("The same ratio: 3.1 (about equal: within a factor of 2).",)
LOSSES = {"alibi": [1.0, 2.0], "rope": [NAN, 3.0], "shaw": [NAN, NAN]}
RESULT = ExperimentResult(
    "Why attention divides by sqrt(d_k)",
    "Attention treats its input as a set, so positions must be encoded. Some encodings still work beyond the "
    "training length, others do not.",
    [
        Claim(*("T5's buckets extrapolate.", "Press et al., 2022"), FINDINGS[0], True),
        Claim(*("Dead units cost quality.", "implied where they are called a problem"), FINDINGS[1], False),
        Claim(*("Pre-norm trains without warm-up.", "Xiong et al., 2020"), FINDINGS[2], None),
    ],
    [
        LinePlot("Variance of q.k", "step", CURVES, log=True),
        DotPlot("Held-out loss on a recall task", "nats per token", LOSSES, DOTS),
        ParetoPlot(
            "Divergence and bytes",
            "peak KiB per text",
            "KL divergence, nats per token",
            {"h2o": [("h2o 1/4", 4.0, 0.2), ("h2o 1/8", 2.0, 0.4)], "window": [("window 1/4", 4.0, 0.5)]},
        ),
        ResultTable("All numbers", ("design", "loss"), [("alibi", 12000), ("rope", 0.03125)], DOTS),
    ],
    "Recall: encoder-decoders of 2+2 layers, d_model 64, 250 steps, 3 seeds, feature map elu + 1.",
)
NAMES = {
    "alibi rope shaw relu h2o window T5 KiB KL sqrt(d_k) q.k d_model elu pre-norm",
    *(claim.source for claim in RESULT.claims),
}


@pytest.fixture
def write_page(tmp_path):
    """Write the page in a language."""

    def write_one(language="en"):
        with use_language(language):
            html = render_lab_page(RESULT, True, "polyhead experiments")
        (tmp_path / f"{language}.html").write_text(html, encoding="utf-8")
        return tmp_path / f"{language}.html"

    return write_one


def test_pointer_reads_curve_on_logarithmic_axis(write_page, open_page):
    page = open_page(write_page())
    figure = page.locator("figure.plot")
    chart, keys = figure.locator("svg").first, figure.locator(".key output")
    chart.scroll_into_view_if_needed()
    start, end = (float(word) for word in chart.get_attribute("data-x").split()[2:4])
    box = chart.bounding_box()
    scale = box["width"] / float(chart.get_attribute("viewBox").split()[2])
    for fraction, step, alibi in ((0.02, "1", "4"), (0.5, "10", "2.5"), (0.98, "100", "2")):
        chart.hover(position={"x": (start + fraction * (end - start)) * scale, "y": box["height"] / 2})
        assert (figure.locator(".at output").inner_text(), keys.first.inner_text()) == (step, alibi)
    page.mouse.move(1, 1)
    assert keys.all_inner_texts() == ["2", "1"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_is_accessible_and_translated(language, write_page, open_page):
    page = open_page(write_page(language))
    check_accessibility(page)
    assert language == "en" or find_english(page, NAMES | {"polyhead experiments"}) == set()


def test_experiment_writes_chinese_page(tmp_path, open_page):
    run_command("zh", "experiments", "parallelism", "--quick", "--out", str(tmp_path))
    page = open_page(tmp_path / "parallelism.html")
    citations = set(page.locator(".cited").all_inner_texts())
    names = {"polyhead experiments parallelism seed quick torch cpu", "d_model fp32 logit", "Polyhead"}
    assert find_english(page, citations | names) == set()
    check_accessibility(page)
