"""The page of ``explain`` in a service: settings of levers, and what the reader does while it computes."""

import copy

import pytest
import torch
from tests.browser.conftest import wait_until
from tests.browser.explain_pages import go_to_station, open_walk, read_numbers, select_values
from tests.serve.conftest import build_run, serve_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service():
    with serve_run(build_run("decoder", n_layers=2)) as service:
        yield service


def open_text(open_page, service, **options):
    """The live page after it has explained a text."""
    page = open_walk(open_page, f"{service.url}/explain", **options)
    page.get_by_label("Text to explain").fill("two dogs bark .")
    page.get_by_role("button", name="Explain", exact=True).click()
    wait_until(page, "explain.page.data?.inputs.text === 'two dogs bark .'")
    return page


def wait_for_cases(page, lever, n):
    levers = "explain.page.data.levers.levers"
    wait_until(page, f"{levers}.find((one) => one.name === '{lever}').cases.length === {n}")


def wait_for_requests(page, routes, n):
    while len(routes) < n:
        page.wait_for_timeout(50)
    assert len(routes) == n


def open_lever(open_page, service, lever):
    """A lever of a text, and the list of its paused requests, of which the first is for the defaults."""
    page, routes = open_text(open_page, service), []
    page.route("**/v1/explain", lambda route: routes.append(route))
    page.evaluate("lever => explain.go({ station: 'levers', lever })", lever)
    wait_for_requests(page, routes, 1)
    return page, routes


def check_case(page, service, lever, setting):
    """The page shows what the service computes for this setting."""
    body = {"text": "two dogs bark .", "lever": lever, "setting": setting}
    expected = service.ask("/v1/explain", body).json()["case"]["result"]["mean_kl"]
    page.locator("#card-lever .pointable").first.focus()
    assert page.locator("#inspector h2").inner_text() == "mean KL"
    value = float(page.locator("#inspector output").get_attribute("data-value"))
    assert value == pytest.approx(expected, rel=1e-5)
    assert page.locator(f"[data-focus='lever-{lever}']").get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_latest_setting_wins_in_any_order(order, open_page, service):
    """A setting is requested while the defaults are computed; either result comes first."""
    page, routes = open_lever(open_page, service, "sampling")
    temperature = page.locator("[data-focus='field-sampling-temperature']")
    temperature.fill("0.5")
    page.get_by_role("button", name="Compute").click()
    wait_for_requests(page, routes, 2)
    for n, i in enumerate(order, 1):
        routes[i].continue_()
        wait_for_cases(page, "sampling", n)
    assert temperature.input_value() == "0.5"
    assert page.locator("form.live [role=status]").inner_text() == ""
    check_case(page, service, "sampling", routes[1].request.post_data_json["setting"])


def test_result_does_not_reset_form(open_page, service):
    page, routes = open_lever(open_page, service, "cache")
    policy = page.locator("[data-focus='field-cache-cache']")
    name = next(name for name in ("quantized", "window") if name != policy.input_value())
    policy.select_option(name)
    routes[0].continue_()
    wait_for_cases(page, "cache", 1)
    assert policy.input_value() == name
    page.get_by_role("button", name="Compute").click()
    wait_for_requests(page, routes, 2)
    setting = routes[1].request.post_data_json["setting"]
    assert setting["cache"]["name"] == name
    routes[1].continue_()
    wait_for_cases(page, "cache", 2)
    assert policy.input_value() == name
    check_case(page, service, "cache", setting)


def test_result_does_not_replace_another_lever(open_page, service):
    page, routes = open_lever(open_page, service, "sampling")
    page.locator("[data-focus='lever-scale']").click()
    wait_for_requests(page, routes, 2)
    routes[1].continue_()
    wait_for_cases(page, "scale", 1)
    routes[0].continue_()
    wait_for_cases(page, "sampling", 1)
    check_case(page, service, "scale", routes[1].request.post_data_json["setting"])


def test_next_text_stays_in_form(open_page, service):
    page, routes = open_lever(open_page, service, "sampling")
    text = page.get_by_label("Text to explain")
    text.fill("a dog barks .")
    text.press("Enter")
    wait_for_requests(page, routes, 2)
    text.fill("dogs")
    routes[1].continue_()
    wait_until(page, "explain.page.data.inputs.text === 'a dog barks .'")
    assert text.input_value() == "dogs"
    wait_for_requests(page, routes, 3)
    assert routes[2].request.post_data_json["text"] == "a dog barks ."


@torch.no_grad()
def compute_log_probs(model, ids, lever, setting):
    """Log-probabilities of a language model with one lever, computed here."""
    model = copy.deepcopy(model)
    layers = model.stack.layers
    if lever == "scale":
        for layer in layers:
            layer.attn.scale = setting["scale"]
    elif lever == "layer":
        del layers[setting["layer"] - 1]
    elif lever == "head":
        attn, end = layers[setting["layer"] - 1].attn, layers[0].attn.v_head_dim * setting["head"]
        attn.o_proj.weight[:, end - attn.v_head_dim : end] = 0
    return (model(ids)[0].double() / setting.get("temperature", 1)).log_softmax(-1)


def test_lever_forms_match_changed_model(open_page, service):
    page = open_text(open_page, service)
    ids = torch.tensor([page.evaluate("explain.page.data.sides[0].tokens.map((token) => token.id)")])
    plain = compute_log_probs(service.run.model, ids, "", {})
    go_to_station(page, "levers")
    layers = (("layer", {"layer": 2}), ("head", {"layer": 1, "head": 2}))
    for lever, setting in (("sampling", {"temperature": 0.5}), ("scale", {"scale": 0.9}), *layers):
        page.locator(f"[data-focus='lever-{lever}']").click()
        # what the page requests itself: the first setting of a file, and every head
        n_heads = 2 * service.run.config.n_heads if lever == "head" else 0
        wait_for_cases(page, lever, n_heads or 1)
        for field, value in setting.items():
            page.locator(f"[data-focus='field-{lever}-{field}']").fill(str(value))
        page.get_by_role("button", name="Compute").click()
        wait_for_cases(page, lever, n_heads or 2)
        if lever == "head":
            chosen = page.locator(".head-cell[aria-pressed=true]")
            assert (chosen.count(), chosen.inner_text()) == (1, "2")
        other = compute_log_probs(service.run.model, ids, lever, setting)
        kl = (plain.exp() * (plain - other)).sum(-1)
        assert kl.max() > 1e-4
        first = page.evaluate(
            f"explain.page.data.levers.levers.find((one) => one.name === '{lever}').cases[0]"
        )
        assert max(first["result"]["kl"]) > 1e-4  # it opens with a change
        numbers = read_numbers(page, "#card-lever")
        assert select_values(numbers, "KL") == pytest.approx(kl.tolist(), rel=1e-3, abs=1e-9), lever
        labels = zip(range(len(plain)), ids[0, 1:], strict=False)
        ranks = [1 + int((p[i] > p[i, label]).sum()) for i, label in labels for p in (plain, other)]
        assert select_values(numbers, "Rank") == ranks, lever
        assert select_values(numbers, "mean KL") == [pytest.approx(float(kl.mean()), rel=1e-3)]
        best = torch.stack([plain, other], 1).amax(-1).exp().flatten().tolist()
        assert select_values(numbers, "Probability") == pytest.approx(best, rel=1e-4), lever


def test_service_error_is_displayed(open_page, service):
    page = open_text(open_page, service, expected="400")
    go_to_station(page, "levers")
    page.locator("[data-focus='lever-cache']").click()
    wait_for_cases(page, "cache", 1)
    page.locator("[data-focus='field-cache-cache']").select_option("low_rank")
    page.get_by_role("button", name="Compute").click()
    message = "document.querySelector('form.live [role=status]').textContent"
    wait_until(page, f"/rank is 32, but the text has/.test({message})")
