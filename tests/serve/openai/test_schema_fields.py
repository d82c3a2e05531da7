import psutil
import pytest
from tests.serve.conftest import get_error

from polyhead.serve.limits import Limits

PATH, LIMITS = "/v1/completions", Limits()


@pytest.mark.acceptance("E6")
@pytest.mark.parametrize(
    ("name", "minimum", "maximum"),
    [
        ("n", 1, LIMITS.max_n),
        ("max_tokens", 1, 2**31 - 1),
        ("top_k", -1, 2**31 - 1),
        ("beam_size", 1, LIMITS.max_beams),
        ("min_tokens", 0, LIMITS.max_tokens),
        ("seed", -1, 2**63 - 1),
        ("logprobs", 0, 20),
    ],
)
def test_integers_are_limited_before_their_use(checked_client, name, minimum, maximum):
    memory = psutil.Process().memory_info().rss
    invalid = [min(-1, minimum - 1), minimum - 1, maximum + 1, 2**63, 2**64, -(2**63)]
    for value in (*invalid, 1e308, 1.0, "7", True, [1], {}):
        assert get_error(checked_client.ask(PATH, {"prompt": "a", name: value}))["param"] == name, value
    assert psutil.Process().memory_info().rss - memory < 10 * 2**20
    options = {"truncate": True, "stop": ["a"]} if name == "max_tokens" else {"max_tokens": 2}
    if name == "min_tokens":  # within the limits, but above max_tokens
        options["beam_size"] = 2
        error = get_error(checked_client.ask(PATH, {"prompt": "a", name: maximum, **options}))
        assert error["param"] == name
        assert "more than the maximum of 2 tokens of this output" in error["message"]
        maximum = 2
    for value in {minimum, min(maximum, 2**53)} - {0}:
        answer = checked_client.ask(PATH, {"prompt": "a", name: value, **options})
        assert answer.status_code == 200, value


@pytest.mark.acceptance("C9")
@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-38, 1e-6, 1, 1e3])
def test_any_temperature_samples_as_the_run(checked_client, temperature):
    expected = checked_client.run.generate(["dogs"], temperature=temperature, seed=1)
    answer = checked_client.ask(PATH, {"prompt": "dogs", "temperature": temperature, "seed": 1}).json()
    assert [answer["choices"][0]["text"]] == expected
