import pytest

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.generation.settings import with_overrides


@pytest.mark.parametrize(
    ("verb", "name", "hint"),
    [
        ("translations", "num_beams", "; did you mean 'beam_size'?"),
        ("translations", "src_lang", "; did you mean 'source_lang'?"),
        ("translations", "max_length", "; did you mean 'max_length_ratio'?"),  # max_new_tokens has no effect
        ("sampled text", "max_length", "; did you mean 'max_new_tokens'?"),
        ("sampled text", "num_beams", "; did you mean 'beam_size'?"),
        ("sampled text", "num_return_sequences", "; did you mean 'n'?"),
        ("sampled text", "stop_strings", "; did you mean 'stop'?"),
        ("sampled text", "do_sample", "; known: batch_tokens, beam_size, cache, frequency_penalty, grammar"),
        ("text embeddings", "batch_size", "; known: embed_max_len, embed_prompt, "),
    ],
)
def test_unknown_options_get_hints_for_the_verb(verb, name, hint):
    with pytest.raises(UserError) as error:
        with_overrides(GenerationConfig(), {name: 4}, verb)
    assert str(error.value).startswith(f"{name}: unknown key{hint}")
