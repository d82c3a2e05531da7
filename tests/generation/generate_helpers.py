"""Models of several designs, and the events of generate."""

from tests.generation.helpers import GREEDY, build_noisy, ids_by_row

from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.generate import generate

PAD, EOS, V = 0, 2, 23
NO_EOS = -1  # an id that no model generates
PROMPTS = [[5, 6, 7], [9], [4, 4, 8, 11, 3, 12, 20], [21, 5]]
WARM = Sampling(temperature=1.3, top_k=9, repetition_penalty=1.2)
DESIGNS = {
    "gpt-2": {"position": "learned", "norm_first": True, "feed_forward": "gelu", "scale_embedding": False},
    "llama": {"position": "rope", "norm": "rmsnorm", "norm_first": True, "n_kv_heads": 2},
    "linear": {"attention": "linear"},
    "lstm": {"block": "lstm", "position": "none"},
}


def make(design, **sizes):
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 40, "max_len": 64} | sizes | DESIGNS[design]
    config = ModelConfig(kind="decoder", vocab_size=V, tie_embeddings="none", **sizes)
    return build_noisy(config, 3, 0.2, 4, head_scale=3)


def collect(model, prompts, **options):
    options = {"sampling": GREEDY, "eos_id": EOS, "max_new_tokens": 12} | options
    events = list(generate(model, prompts, **options))
    return ids_by_row(events, options.get("n", 1) * len(prompts), options.get("row_offset", 0)), events
