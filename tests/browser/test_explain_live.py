"""The page of ``explain`` in a service: what the reader chooses while the service computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.browser.test_explain_page import open_walk, wait_until
from tests.serve.conftest import Live, living
from tests.serve.conftest import make as make_served

Open = Callable[..., Any]
LEVER = "explain.page.data.levers.levers.find((one) => one.name === '{}')"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with living(make_served("decoder", n_layers=2)) as live:
        yield live


class Held:
    """The requests of a page that wait until the test lets them go: from the first lever on."""

    def __init__(self, page: Any) -> None:
        self.routes: list[Any] = []
        page.route("**/v1/explain", self._add)

    def _add(self, route: Any) -> None:
        self.routes.append(route)


def wait_for_requests(page: Any, held: Held, n: int) -> None:
    for _ in range(400):
        if len(held.routes) == n:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{len(held.routes)} requests instead of {n}")


def open_lever(open_page: Open, live: Live, lever: str) -> tuple[Any, Held]:
    """A lever of a text on the live page, and its requests, of which the first is for the defaults."""
    page = open_walk(open_page, f"{live.url}/explain")
    page.get_by_label("Text to explain").fill("two dogs bark .")
    page.get_by_role("button", name="Explain", exact=True).click()
    wait_until(page, "explain.page.data?.inputs.text === 'two dogs bark .'")
    held = Held(page)
    page.evaluate("lever => explain.go({ station: 'levers', lever })", lever)
    wait_for_requests(page, held, 1)
    return page, held


def assert_shows(page: Any, live: Live, lever: str, setting: dict[str, Any]) -> None:
    """The page shows what the service computes for this setting."""
    body = {"text": "two dogs bark .", "lever": lever, "setting": setting}
    expected = live.ask("/v1/explain", body).json()["case"]["result"]["mean_kl"]
    page.locator("#card-lever .pointable").first.focus()
    assert page.locator("#inspector h2").inner_text() == "mean KL"
    shown = float(page.locator("#inspector output").get_attribute("data-value"))
    assert shown == pytest.approx(expected, rel=1e-5)
    assert page.locator(f"[data-focus='lever-{lever}']").get_attribute("aria-pressed") == "true"


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_later_setting_of_a_lever_is_shown(order: tuple[int, int], open_page: Open, live: Live) -> None:
    """A setting is asked for while the defaults are computed, whichever result comes first."""
    page, held = open_lever(open_page, live, "sampling")
    page.locator("[data-focus='field-sampling-temperature']").fill("0.5")
    page.get_by_role("button", name="Compute").click()
    wait_for_requests(page, held, 2)
    for n, answer in enumerate(order, 1):
        held.routes[answer].continue_()
        wait_until(page, f"{LEVER.format('sampling')}.cases.length === {n}")
    assert page.locator("[data-focus='field-sampling-temperature']").input_value() == "0.5"
    assert page.locator("form.live [role=status]").inner_text() == ""
    assert_shows(page, live, "sampling", held.routes[1].request.post_data_json["setting"])


@pytest.mark.slow
def test_what_is_written_in_a_lever_stays_when_its_result_is_drawn(open_page: Open, live: Live) -> None:
    page, held = open_lever(open_page, live, "cache")
    policy = page.locator("[data-focus='field-cache-cache']")
    chosen = next(name for name in ("quantized", "window") if name != policy.input_value())
    policy.select_option(chosen)
    held.routes[0].continue_()
    wait_until(page, f"{LEVER.format('cache')}.cases.length === 1")
    assert policy.input_value() == chosen
    page.get_by_role("button", name="Compute").click()
    wait_for_requests(page, held, 2)
    setting = held.routes[1].request.post_data_json["setting"]
    assert setting["cache"]["name"] == chosen
    held.routes[1].continue_()
    wait_until(page, f"{LEVER.format('cache')}.cases.length === 2")
    assert policy.input_value() == chosen
    assert_shows(page, live, "cache", setting)


@pytest.mark.slow
def test_a_result_does_not_replace_another_lever(open_page: Open, live: Live) -> None:
    page, held = open_lever(open_page, live, "sampling")
    page.locator("[data-focus='lever-scale']").click()
    wait_for_requests(page, held, 2)
    held.routes[1].continue_()
    wait_until(page, f"{LEVER.format('scale')}.cases.length === 1")
    held.routes[0].continue_()
    wait_until(page, f"{LEVER.format('sampling')}.cases.length === 1")
    assert_shows(page, live, "scale", held.routes[1].request.post_data_json["setting"])


@pytest.mark.slow
def test_the_next_text_stays_in_the_form_while_one_is_computed(open_page: Open, live: Live) -> None:
    page, held = open_lever(open_page, live, "sampling")
    text = page.get_by_label("Text to explain")
    text.fill("a dog barks .")
    text.press("Enter")
    wait_for_requests(page, held, 2)
    text.fill("dogs")
    held.routes[1].continue_()
    wait_until(page, "explain.page.data.inputs.text === 'a dog barks .'")
    assert text.input_value() == "dogs"
    wait_for_requests(page, held, 3)
    assert held.routes[2].request.post_data_json["text"] == "a dog barks ."
