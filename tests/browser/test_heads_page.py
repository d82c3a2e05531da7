"""The page of all heads in a browser."""

from tests.browser.conftest import check_accessibility
from tests.introspect.test_head_scores import TOKENS, pure_heads

from polyhead.introspect.head_scores import survey_heads
from polyhead.viz.heads_page import write_heads_page


def test_cell_leads_to_the_figure_of_its_head(open_page, tmp_path):
    attention, kinds = pure_heads(TOKENS)
    heads = survey_heads(lambda text: {"self": attention}, [("a",)], {})
    page = open_page(write_heads_page(tmp_path / "heads.html", heads, None))
    cells = page.locator(".heads a")
    assert [cell.get_attribute("class") for cell in cells.all()] == [f"kind-{kind}" for kind in kinds]
    cells.nth(3).click()
    figure = page.locator("figure:target")
    assert "induction" in figure.inner_text()
    assert figure.get_attribute("id") == "self-1-3"
    check_accessibility(page)
