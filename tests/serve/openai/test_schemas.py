from tests.serve.conftest import get_error


def test_values_of_seed(client):
    body = {"prompt": "dogs", "max_tokens": 2}
    for seed in (0, 2**53 + 1, 2**63 - 1):
        answer = client.ask("/v1/completions", body | {"seed": seed}).json()
        assert [answer["choices"][0]["text"]] == client.run.generate(["dogs"], seed=seed, max_new_tokens=2)
    random = [client.ask("/v1/completions", body | fields) for fields in ({"seed": -1}, {"seed": -1}, {})]
    assert len({answer.json()["choices"][0]["text"] for answer in random}) > 1
    for seed in (-2, 2**63, 2**63 + 1):
        assert get_error(client.ask("/v1/completions", body | {"seed": seed}))["param"] == "seed"
