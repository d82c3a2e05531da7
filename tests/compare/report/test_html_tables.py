import re

from tests.compare.result_rows import make_scored_rows

from polyhead.compare.report.page import write_compare_page


def test_best_design_is_one_that_has_learned(tmp_path, plan):
    rows = make_scored_rows(good=40.0, base=35.0, bad=20.0)
    rows[2]["loss"] = 0.1  # the lowest of all
    html = write_compare_page(tmp_path / "page.html", rows, plan).read_text()
    assert re.search(r"lowest loss</dt><dd>[\d.]+</dd><dt>good<", html)
    assert html.count("not learned</span>") == 2  # once in either table
    assert "Not learned: bad. Their score (BLEU)" in html
    chart = html[html.index("Quality against cost") :]
    assert "<title>good: " in chart and "<title>bad: " not in chart
    # the page's script finds the designs by the number of each of these rows
    assert all(re.search(r"\bc\d+\b", classes) for classes in re.findall(r'<tr class="(row [^"]*)"', html))
    assert "baseline: copied source" in html and "<td>30.00</td>" in html
