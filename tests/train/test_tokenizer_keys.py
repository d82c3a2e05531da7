"""Runs with a vocabulary of each side, with a tokenizer of one's own, and with a grown one."""

import pytest
import torch
import transformers
from tests.train.conftest import Notes, equal_tensors, small_recipe, user_error, write_corpus

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.nn.state import named_state
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("no_report")
LM = {
    "kind": "decoder",
    "position": "learned",
    "norm": "layernorm",
    "norm_first": True,
    "scale_embedding": False,
    "tie_embeddings": "all",
}
LM |= {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 32}
STEPS = {"steps": 4, "max_tokens": 64, "log_every": 2, "eval_every": 4, "save_every": 2, "precision": "fp32"}


@pytest.fixture(scope="module")
def workdir(no_report, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokens")
    write_corpus(directory)
    for split in ("train", "valid"):
        text = (directory / f"{split}.de").read_text()
        (directory / f"{split}.new").write_text(text.replace("a", "ä").replace("e", "øé").upper())
    return directory


def lm_recipe(directory, out, suffix="de", **sections):
    data = {"root": str(directory), "train": f"train.{suffix}", "valid": f"valid.{suffix}", "max_len": 16}
    settings = {"task": "language-model", "data": data, "train": STEPS, "out": str(directory / out)}
    return Recipe.model_validate(settings | sections)


def train(recipe, **options):
    notes = Notes()
    return run_training(recipe, report=notes, **options)[0], notes.lines


@pytest.fixture(scope="module", params=["all", "none"])
def origin(request, workdir):
    model = LM | {"tie_embeddings": request.param, "lm_head_bias": request.param == "none"}
    recipe = lm_recipe(workdir, f"old-{request.param}", model=model, tokenizer={"vocab_size": 280})
    return train(recipe)[0], recipe.out


@pytest.mark.parametrize("extend", [12, "words.txt"])
def test_new_rows_are_means_and_all_else_stays(workdir, origin, extend):
    old, directory = origin
    (workdir / "words.txt").write_text("DØÉR\nKÖNIGIN\n", encoding="utf-8")
    tokens = extend if isinstance(extend, int) else str(workdir / extend)
    sections = {"init_from": str(directory), "tokenizer": {"extend": tokens}}
    frozen = {"train": STEPS | {"steps": 1, "lr": 1e-30, "optimizer": {"name": "adamw", "weight_decay": 0.0}}}
    recipe = lm_recipe(workdir, f"{directory.name}-{str(extend)[:2]}", "new", **sections, **frozen)
    new, lines = train(recipe)
    n_old, n_new = old.tokenizer.vocab_size, new.tokenizer.vocab_size
    assert n_new - n_old == extend if isinstance(extend, int) else n_new > n_old
    assert any(f"{n_new - n_old} new tokens" in line for line in lines)
    before, after = named_state(old.model), named_state(new.model)
    grown_names = {name for name in before if before[name].shape != after[name].shape}
    is_tied = old.config.tie_embeddings == "all"
    assert grown_names == {"embedding.token.weight"} | (set() if is_tied else {"head.weight", "head.bias"})
    assert equal_tensors(before, {name: tensor[: len(before[name])] for name, tensor in after.items()})
    for i in range(n_old, n_new):
        text = new.tokenizer.decode([[i]])[0]
        if "\N{REPLACEMENT CHARACTER}" not in text:  # whole characters: the old tokenizer can read it
            (pieces,) = old.tokenizer.encode([text])
            for name in grown_names:
                torch.testing.assert_close(after[name][i], before[name][pieces].mean(0), rtol=1e-6, atol=1e-7)
    assert Tokenizer.load(recipe.out).sha256 == new.tokenizer.sha256


def test_grown_run_is_resumed_exactly_and_exported(workdir, origin, tmp_path):
    _, directory = origin
    sections = {"init_from": str(directory), "tokenizer": {"extend": 12}}
    whole = lm_recipe(workdir, f"{directory.name}-whole", "new", **sections)
    part = whole.model_copy(update={"out": workdir / f"{directory.name}-part"})
    run, _ = train(whole)
    train(part.model_copy(update={"train": part.train.model_copy(update={"steps": 2})}))
    resumed_run, _ = train(part, resume=True)
    assert equal_tensors(named_state(run.model), named_state(resumed_run.model))
    if run.config.lm_head_bias:
        return  # no family has it
    from polyhead.cli import main

    exported = tmp_path / "hf"
    assert main(["export", str(whole.out), str(exported), "--to", "hf"]) == 0
    reference = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    text = (workdir / "valid.new").read_text()[:40]
    (ids,) = run.tokenizer.encode([text])
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids and tokenizer.decode(ids) == text
    assert max(ids) > 280
    with torch.inference_mode():
        torch.testing.assert_close(reference(torch.tensor([ids])).logits, run.model(torch.tensor([ids])))


def test_other_tokenizer_keys_are_refused_with_init_from(workdir, origin):
    recipe = lm_recipe(workdir, "refused", init_from=str(origin[1]), tokenizer={"vocab_size": 300})
    with user_error("tokenizer: init_from.run sets it, to match the model; only extend can be set"):
        train(recipe)


@pytest.fixture(scope="module")
def two_sided(workdir):
    recipe = small_recipe(workdir, "sides", steps=4, tokenizer={"joint": False, "kind": "char"},
                          model={"tie_embeddings": "target"})  # fmt: skip
    return train(recipe)[0], recipe


def test_each_side_has_its_vocabulary_and_embedding(two_sided):
    run, _ = two_sided
    source, target = run.tokenizer, run.tokenizer.target_tokenizer
    assert source.vocab_size != target.vocab_size
    shapes = {name: tuple(tensor.shape) for name, tensor in named_state(run.model).items()}
    assert shapes["encoder_embedding.token.weight"] == (source.vocab_size, 16)
    assert shapes["decoder_embedding.token.weight"] == (target.vocab_size, 16)
    assert isinstance(run, Run) and isinstance(run.translate(["der hund"]), list)


def test_two_vocabularies_are_kept_loaded_and_started_from(workdir, two_sided):
    run, recipe = two_sided
    loaded_run = ph.load(recipe.out)
    assert loaded_run.tokenizer.sha256 == run.tokenizer.sha256
    assert equal_tensors(named_state(loaded_run.model), named_state(run.model))
    files = [str(recipe.out / name) for name in ("tokenizer.json", "target_tokenizer.json")]
    own = small_recipe(workdir, "own", steps=4, tokenizer={"file": files}, model={"tie_embeddings": "target"})
    new_run, _ = train(own)
    pairs = (
        (new_run.tokenizer, run.tokenizer),
        (new_run.tokenizer.target_tokenizer, run.tokenizer.target_tokenizer),
    )
    for mine, reference in pairs:
        assert mine.ids_to_tokens(range(mine.vocab_size)) == reference.ids_to_tokens(
            range(reference.vocab_size)
        )
    assert equal_tensors(named_state(new_run.model), named_state(run.model))


def test_shared_embeddings_of_two_vocabularies_are_refused(workdir):
    with pytest.raises(ValueError, match=r"tie_embeddings: 'all' shares the embeddings of both sides"):
        small_recipe(workdir, "shared", tokenizer={"joint": False})
