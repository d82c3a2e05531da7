import pytest
from tests.generation.helpers import GREEDY

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.generation.generate import generate
from polyhead.generation.greedy import greedy_decode
from polyhead.models import build

PROMPTS = [[3], [5, 1, 16], [2, 2, 2, 9, 4, 11]]
DESIGNS = {"rope": {"position": "rope"}, "alibi": {"position": "alibi", "norm_first": True}}
DESIGNS |= {"recurrent": {"block": "lstm", "position": "none"}}
DESIGNS |= {"linear": {"attention": "linear", "position": "learned"}}
CACHES = [Choice("growing"), Choice("paged", block_size=2, max_blocks=20)]


def build_model(design, seed):
    sizes = {"vocab_size": 17, "d_model": 16, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
    return build(ModelConfig(kind="decoder", **sizes, **DESIGNS[design]), seed=seed).eval()


@pytest.mark.parametrize(
    ("design", "cache"),
    [*((design, None) for design in DESIGNS), *((d, c) for d in ("rope", "alibi") for c in CACHES)],
)
def test_greedy_decode_equals_the_engine(design, cache):
    model = build_model(design, 3)
    for prompt, eos_id in zip((*PROMPTS, PROMPTS[1]), (0, 5, 11, 16), strict=True):
        actual = greedy_decode(model, prompt, max_new_tokens=9, eos_id=eos_id, cache=cache)
        events = generate(model, [prompt], sampling=GREEDY, eos_id=eos_id, max_new_tokens=9)
        assert actual == [event.id for event in events if event.id != eos_id]
    assert greedy_decode(model, PROMPTS[0], max_new_tokens=0) == []
