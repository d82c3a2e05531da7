from pathlib import Path

import pytest
import torch
from tests.hf.conftest import TEXTS, VOCABULARY, edit_json, export_run, small_tokenizer
from tests.hf.save_helpers import BASES, CONFIGS, config, model_config, save_random_run
from tests.hf.tables import read_table
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.hf.save import pick_family
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import Tokenizer as Inner

NO_ROPE_LLAMA = BASES["llama"] | {"layer_pattern": [{}, {"position": "none"}], "n_layers": 3}
NTK = {"position": {"name": "rope", "scaling": "ntk", "factor": 2.0}}


@pytest.mark.parametrize(("family", "parts"), CONFIGS["decoders"])
def test_exported_run_opens_in_reference(family, parts, tmp_path):
    """Also by readers that know only the older keys of ropes and layers."""
    model, tokens = save_random_run(tmp_path / "run", **parts), torch.randint(5, VOCABULARY, (2, 20))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "exported"), "--to", "hf"]) == 0
    for removed_keys in ((), ("rope_parameters", "layer_types")):
        edit_json(tmp_path / "exported/config.json", removed_keys)
        reference = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
        assert reference.config.model_type == family
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(tokens), reference(tokens).logits, rtol=1e-5, atol=1e-5)
        if parts not in (BASES["gemma3"], NO_ROPE_LLAMA):
            break
    generation = reference.generation_config
    assert (generation.do_sample, generation.temperature, generation.top_p) == (True, 0.8, 0.9)
    assert (generation.eos_token_id, generation.no_repeat_ngram_size) == (2, 4)
    assert not (tmp_path / "exported" / "modules.json").exists()


@pytest.mark.parametrize("separator", ["line", pytest.param("blank", marks=pytest.mark.slow), "file"])
@pytest.mark.parametrize("template", ["$A </s>", "<s> $A"])
def test_exported_tokenizer_frames_prompts_as_run(separator, template, tmp_path):
    """Whatever its template was before the training, the exported one is that of the training."""
    data = {"train": "a.txt", "valid": "a.txt", "document_separator": separator}
    keys = {"task": "language-model", "data": data, "train": {"steps": 1}}
    recipe = Recipe.model_validate(keys | {"generation": {"temperature": 0}})
    inner = Inner.from_str(small_tokenizer().tokenizer_json)
    special_tokens = [(token, inner.token_to_id(token)) for token in ("<s>", "</s>")]
    inner.post_processor = TemplateProcessing(
        single=template, pair=f"{template} $B", special_tokens=special_tokens
    )
    run = Run(build(config(), seed=1), Tokenizer(inner), recipe.generation, recipe)
    export_run(run, tmp_path)
    generate = pipeline("text-generation", str(tmp_path / "exported"))
    for prompt in ("the king", "a dog barks"):
        output = generate(prompt, max_new_tokens=12, return_full_text=False)[0]["generated_text"]
        for one in (run, ph.load(tmp_path / "exported")):
            assert one.generate([prompt], max_new_tokens=12)[0] == output.rstrip("\ufffd")


POST_NORM = {"norm_first": False, "embedding_norm": True, "lm_head_bias": True, "feed_forward": "gelu"}


def recipe_for(task):
    data = {"train": "a.txt", "valid": "a.txt"}
    return Recipe.model_validate({"task": task, "data": data, "train": {"steps": 1}})


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "char"])
def test_masks_filled_as_by_reference_pipeline(kind, tmp_path):
    """The mask of the training hides the space before a word, where tokens hold that."""
    recipe, tokenizer = recipe_for("masked-lm"), train_tokenizer(TEXTS * 5, Choice(kind), VOCABULARY)
    sizes = {**BASES["gpt2"], **POST_NORM, "kind": "encoder", "n_segments": 1}
    model = build(ModelConfig(vocab_size=tokenizer.vocab_size, **sizes), seed=1)
    export_run(Run(model, tokenizer, recipe.generation, recipe), tmp_path)
    run, exported_model = ph.load(tmp_path / "run"), ph.load(tmp_path / "exported")
    fill = pipeline("fill-mask", str(tmp_path / "exported"), top_k=12)
    for text in ("the <mask> of the sea", "a dog,<mask> barks"):
        fills, reopened_fills = (one.fill_mask([text])[0][0] for one in (run, exported_model))
        expected = [one["score"] for one in fill(text) if one["token"] not in tokenizer.special_ids]
        assert [one.probability for one in fills] == pytest.approx(expected[:5], rel=1e-4)
        assert fills == reopened_fills


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentinels_take_preceding_space_in_export(kind, tmp_path):
    recipe = recipe_for("denoising")
    tokenizer = train_tokenizer(TEXTS * 5, Choice(kind), VOCABULARY, sentinels=2)
    position = {"position": {"name": "learned", "offset": 2}}
    model = build(config(kind="encoder-decoder", **POST_NORM | position), seed=1)
    export_run(Run(model, tokenizer, recipe.generation, recipe), tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path / "exported")
    left, right = tokenizer.encode(["the", " dog" if kind == "bpe" else "dog"])
    for name in ("<mask>", "<extra_id_1>"):
        expected = [*left, tokenizer.token_to_id(name), *right, tokenizer.eos_id]
        assert reference(f"the {name} dog")["input_ids"] == expected


@pytest.mark.whole
@pytest.mark.parametrize(
    ("family", "base", "changes", "message"),
    read_table(Path(__file__).parent / "unsupported_components.txt", json_column=2),
)
def test_unsupported_components_are_refused(family, base, changes, message):
    with pytest.raises(UserError) as error:
        pick_family(model_config(**BASES[base] | changes), family)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (BASES["llama"] | NTK, "'llama': scaling of"),
        ({"attention": {"name": "softmax", "softcap": 50.0}}, "'gpt2': softcap of attention"),
        (BASES["own_t5"] | {"n_kv_heads": 1}, "'t5': n_kv_heads is 1, expected 5"),
        (BASES["own_modernbert"] | {"n_kv_heads": 1}, "'modernbert': n_kv_heads is 1, expected 3"),
    ],
)
def test_nearest_family_is_named(changes, message):
    with pytest.raises(UserError, match="no published family has these components; the nearest is ") as error:
        pick_family(config(**changes))
    assert message in str(error.value)
    labels = {"labels": ("a", "b"), "feed_forward": "relu", "head_transform_activation": "silu"}
    assert pick_family(model_config(**BASES["bert"] | labels)) == "bert"
