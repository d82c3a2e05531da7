"""An output that a token limit ends within a character has no half of it."""

from tests.serve.conftest import serve_run

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer


def build_byte_run():
    """A language model with random weights that writes bytes."""
    tokenizer = train_tokenizer(["a"], Choice("byte"), 261)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64}
    model = build(ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, **sizes), seed=3)
    return Run(model, tokenizer, GenerationConfig(max_new_tokens=5, chat=Choice("plain")))


def test_outputs_end_with_a_complete_character():
    num_cut = 0
    with serve_run(build_byte_run()) as client:
        for seed in range(8):
            body = {"prompt": "你好", "seed": seed, "max_tokens": 5, "logprobs": 0}
            answer = client.ask("/v1/completions", body).json()
            (choice,) = answer["choices"]
            events = client.stream("/v1/completions", body)
            assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
            tokens = choice["logprobs"]["tokens"]
            assert answer["usage"]["completion_tokens"] == len(tokens)
            num_cut += choice["finish_reason"] == "length" and tokens[-1].startswith("bytes:")
            path = "/v1/chat/completions"
            body = {"messages": [{"role": "user", "content": "你"}], "seed": seed, "max_tokens": 5}
            content = client.ask(path, body).json()["choices"][0]["message"]["content"]
            deltas = [event["choices"][0]["delta"] for event in client.stream(path, body)]
            assert "".join(delta.get("content") or "" for delta in deltas) == content
            assert not choice["text"].endswith("\ufffd") and not content.endswith("\ufffd")
    assert num_cut, "no output ends within a character"
