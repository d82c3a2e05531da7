import pytest

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the dog sat on the mat", "a cat runs; it is tired.", "the dogs run home, tired", "你好 世界"] * 10


def make_run(name="bpe", **changes):
    tokenizer = train_tokenizer(TEXTS, Choice(name), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 40, "position": "learned"}
    config = {"kind": "encoder", "vocab_size": tokenizer.vocab_size + 3, "dropout": 0.0, **sizes, **changes}
    model = ph.build(ph.ModelConfig.model_validate(config), 3)
    return Run(model, tokenizer, GenerationConfig())


@pytest.fixture(scope="module")
def run():
    return make_run()
