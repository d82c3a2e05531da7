"""Run directories: written, read back, and refused for each thing that can be wrong with one."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.checkpoint import checkpoint
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.kernels.pack_model import packed_dtype
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]
GENERATION = GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3)


def tokenizer(size: int = 300) -> Tokenizer:
    return train_tokenizer(TEXTS * 5, Choice("bpe"), size)


def run(vocab_size: int | None = None, **changes: Any) -> Run:
    tokens = tokenizer()
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 32} | changes
    return Run(
        build(ModelConfig(vocab_size=vocab_size or tokens.vocab_size, **sizes), seed=1), tokens, GENERATION
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "tiny"
    run().save(directory, "# facts\n")
    return directory


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8", "int4"])
def test_a_run_opens_in_less_precision(saved: Path, dtype: str) -> None:
    source, target = ["1 2 3", "4 5 6 7"], ["3 2 1", "7 6 5 4"]
    exact, found = (ph.load(saved, dtype=kind).score(source, target) for kind in ("fp32", dtype))
    off = max(abs(a.log_prob - b.log_prob) for a, b in zip(exact, found, strict=True))
    assert off == 0 if dtype == "fp32" else 0 < off < 0.2
    assert (
        packed_dtype(ph.load(saved, dtype=dtype).model)
        == {"fp32": "float32", "bf16": "bfloat16", "int8": "int8", "int4": "int4"}[dtype]
    )


@pytest.mark.parametrize("position", ["learned", "t5", "shaw", "disentangled"])
def test_opening_a_run_does_without_the_compiler_of_torch(position: str, tmp_path: Path) -> None:
    """It takes a second to be imported, and drawing a tensor that has no memory imports it."""
    run(position=position, tie_embeddings="none").save(saved := tmp_path / "run")
    script = (
        "import sys, polyhead as ph; ph.load(sys.argv[1], fast=True); print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, saved], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_nothing_is_drawn_for_weights_that_are_read(saved: Path) -> None:
    before = torch.get_rng_state()
    ph.load(saved)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("how", [{"fast": True}, {"dtype": "int8"}, {"dtype": "bf16", "fast": True}], ids=str)
def test_what_was_opened_for_inference_alone_is_not_saved_in_pieces(copy: Path, how: dict[str, Any]) -> None:
    before = (copy / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="cannot be saved"):
        ph.load(copy, **how).save(copy)
    assert (copy / "model.safetensors").read_bytes() == before
    ph.load(copy, dtype="bf16").save(copy)


def test_what_is_saved_of_a_run_in_bf16_opens_with_the_same_weights(saved: Path, tmp_path: Path) -> None:
    rounded = ph.load(saved, dtype="bf16")
    rounded.save(tmp_path / "again")
    wanted = {name: x.float() for name, x in rounded.model.named_parameters()}
    found = dict(ph.load(tmp_path / "again").model.named_parameters())
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_what_is_saved_is_loaded(saved: Path) -> None:
    ours, theirs = run(), ph.load(saved)
    assert theirs.config == ours.config
    assert theirs.generation == GENERATION
    assert theirs.tokenizer.sha256 == ours.tokenizer.sha256
    assert theirs.recipe is None
    assert theirs.translate(TEXTS) == ours.translate(TEXTS)
    assert {path.name for path in saved.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    described = json.loads((saved / "config.json").read_text())
    tokens = ours.tokenizer
    assert {name: described[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")} == {
        "pad_token_id": tokens.pad_id, "bos_token_id": tokens.bos_id,
        "eos_token_id": tokens.eos_id, "decoder_start_token_id": tokens.bos_id,
    }  # fmt: skip


def test_a_run_says_what_it_is(saved: Path) -> None:
    run = ph.load(saved)
    assert (
        repr(run)
        == f"Run(encoder-decoder, {run.config.n_layers} layers of {run.config.d_model}, {run.tokenizer.vocab_size} tokens)"
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ours: ours.tokenizer.decode([1, 2]), "decode wants a list of ids for each text, got those of one; write decode([ids])"),
        (lambda ours: ours.tokenizer.decode(torch.tensor([1, 2])), "decode wants a list of ids for each text, got those of one; write decode([ids])"),
        (lambda ours: ours.tokenizer.decode("ab"), "decode wants a list of ids for each text, got 'ab'"),
        (lambda ours: ours.tokenizer.decode([[1], [2, -1]]), "decode wants a list of ids for each text, got -1 among them"),
        (lambda ours: ours.tokenizer.decode([["a"]]), "decode wants a list of ids for each text, got 'a' among them"),
        (lambda ours: ours.tokenizer.ids_to_tokens([[1, 2]]), "ids_to_tokens wants the ids of one text, got those of several; write ids_to_tokens(ids[0])"),
        (lambda ours: ours.tokenizer.ids_to_tokens(1), "ids_to_tokens wants the ids of one text, got 1"),
        (lambda ours: ours.tokenizer.ids_to_tokens(["a"]), "ids_to_tokens wants the ids of one text, got 'a' among them"),
        (lambda ours: ours.tokenizer.token_to_id(3), "no token 3 in the vocabulary"),
        (lambda ours: ours.display_token("x"), "token is 'x'; wanted a whole number, 0 or more"),
        (lambda ours: ours.display_token(-1), "token is -1; wanted a whole number, 0 or more"),
        (lambda ours: ours.fill_mask(["<mask>"], top=3), "top: unknown key; did you mean 'top_k'?"),
        (lambda ours: ours.classify(["a"], batch_size=3), "batch_size: unknown key; did you mean 'batch_tokens'?"),
        (lambda ours: ours.score(["a"], ["b"], batch_tokens="3"), "batch_tokens is '3'; wanted a whole number, 1 or more"),
        (lambda ours: ours.perplexity(["a"], ["b"], xyz=3), "xyz: unknown key; known: sources, targets"),
        (lambda ours: ours.attention_maps("a", traget="b"), "traget: unknown key; did you mean 'target'?"),
        (lambda ours: ours.translate(["a"], ["b"]), "translate takes texts alone without a name, got 2; give the others by name"),
        (lambda ours: ours.translate(), "translate: missing a required argument: texts"),
        (lambda ours: ours.engine(max_num_seq=3), "unknown option of the engine 'max_num_seq'; did you mean 'max_num_seqs'? Known: cache, deterministic, max_batch_tokens, max_num_seqs, prefill_chunk, refill_threshold, shortlist"),
        (lambda ours: ours.engine(max_len=3), "unknown option of the engine 'max_len'; did you mean 'max_num_seqs'? Known: cache, deterministic, max_batch_tokens, max_num_seqs, prefill_chunk, refill_threshold, shortlist"),
        (lambda ours: ours.engine(max_num_seqs="3"), "engine: max_num_seqs is '3'; wanted a whole number, 1 or more"),
        (lambda ours: ours.engine().submit(5), "a request is one text or its tokens, got 5"),
        (lambda ours: ours.engine().submit("a", seed="x"), "seed is 'x'; wanted a whole number, 0 or more"),
        (lambda ours: ph.load("runs/no", devic="cpu"), "devic: unknown key; did you mean 'device'?"),
        (lambda ours: ph.build(ours.config, sed=1), "sed: unknown key; did you mean 'seed'?"),
        (lambda ours: ph.estimate(ours.config, decode_row=2), "decode_row: unknown key; did you mean 'decode_rows'?"),
    ],
)  # fmt: skip
def test_an_argument_that_is_none_is_told_in_one_line(call: Callable[[Run], Any], said: str) -> None:
    with pytest.raises(UserError) as told:
        call(run())
    assert str(told.value) == said


def test_equal_runs_are_equal_files(saved: Path, tmp_path: Path) -> None:
    for i in range(4):
        run().save(tmp_path / str(i), "# facts\n")
        for path in saved.iterdir():
            assert (tmp_path / str(i) / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.acceptance("A15")
@pytest.mark.parametrize(("tying", "matrices"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_weights_are_on_disk_once_and_tied_when_read(tying: str, matrices: int, tmp_path: Path) -> None:
    ours = run(tie_embeddings=tying)
    ours.save(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
        assert file.metadata()["format"] == "pt"
    assert shapes.count([ours.config.vocab_size, 16]) == matrices
    model = ph.load(tmp_path).model
    places = {
        p.data_ptr()
        for p in (
            model.encoder_embedding.token.weight,
            model.decoder_embedding.token.weight,
            model.head.weight,
        )
    }
    assert len(places) == matrices


def missing(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def edited(name: str, **changes: Any) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def written(name: str, content: str) -> Callable[[Path], Any]:
    return lambda directory: (directory / name).write_text(content)


def cut(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_tokenizer(directory: Path) -> None:
    tokenizer(280).save(directory)


EVERY_MISTAKE: list[tuple[Callable[[Path], Any], str]] = [
    (missing("config.json"), "{0} is not a run directory: it has no config.json"),
    (missing("tokenizer.json"), "no tokenizer.json in {0} (there: "),
    (missing("tokenizer_config.json"), "no tokenizer_config.json in {0} (there: "),
    (
        missing("model.safetensors"),
        "{0} holds no model.safetensors and no checkpoint: nothing was trained here yet",
    ),
    (cut, "{0}/model.safetensors is damaged or cut short: "),
    (written("model.safetensors", ""), "{0}/model.safetensors is damaged or cut short: "),
    (written("config.json", "{"), "{0}/config.json is not valid JSON: Expecting property name"),
    (written("config.json", "[]"), "{0}/config.json must hold an object"),
    (written("config.json", " " * (1 << 21)), "{0}/config.json has 2097152 bytes; at most 1048576 are read"),
    (
        edited("config.json", model_type="mariam"),
        "{0}/config.json: unknown model_type 'mariam'; did you mean 'marian'? Known: ",
    ),
    (
        written("config.json", "{}"),
        "{0}/config.json: has no model_type; of a run it is 'polyhead', of a checkpoint",
    ),
    (edited("config.json", d_model="wide"), "{0}/config.json: d_model: 'wide' is not a whole number"),
    (
        edited("config.json", position="ropes"),
        "{0}/config.json: position: unknown position 'ropes'; did you mean 'rope'?",
    ),
    (
        edited("config.json", n_heads=3, head_dim=None),
        "{0}/config.json: d_model (16) must be divisible by n_heads (3)",
    ),
    (
        edited("config.json", norm_frist=True),
        "{0}/config.json: 'norm_frist' is not known; did you mean 'norm_first'?",
    ),
    (
        edited("config.json", auto_map={"AutoModel": "modeling.Evil"}),
        "{0}/config.json: 'auto_map' is not known",
    ),
    (edited("config.json", d_ff=64), "what was trained in {0} does not fit: "),
    (edited("config.json", n_layers=2), "what was trained in {0} does not fit: "),
    (
        edited("generation_config.json", beam_size=0),
        "{0}/generation_config.json: beam_size: 0 is out of range",
    ),
    (
        edited("generation_config.json", beams=2),
        "{0}/generation_config.json: 'beams' is not known; did you mean",
    ),
    (written("recipe.yaml", "train: ["), "{0}/recipe.yaml: line 1"),
    (other_tokenizer, "{0}/tokenizer.json is not the tokenizer that the model was trained with"),
    (edited("config.json", vocab_size=301), "what was trained in {0} does not fit: "),
]


@pytest.mark.acceptance("A14", "F3")
@pytest.mark.parametrize(("spoil", "message"), EVERY_MISTAKE)
def test_each_thing_that_is_wrong_is_named(spoil: Callable[[Path], Any], message: str, copy: Path) -> None:
    spoil(copy)
    with pytest.raises(UserError, match="^" + re.escape(message.replace("{0}", str(copy)))) as error:
        ph.load(copy)
    assert "\n" not in str(error.value)


def test_wrong_shapes_are_named(copy: Path) -> None:
    edited("config.json", d_ff=64)(copy)
    with pytest.raises(
        UserError, match=r"down_proj.weight' is torch.float32 \[16, 32\], wanted torch.float32 \[16, 64\]; "
    ):
        ph.load(copy)


@pytest.mark.acceptance("A14")
def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused() -> None:
    tokens = tokenizer()
    with pytest.raises(
        UserError,
        match=f"the tokenizer has {tokens.vocab_size} tokens, the model only {tokens.vocab_size - 1}:",
    ):
        run(vocab_size=tokens.vocab_size - 1)
    assert run(vocab_size=tokens.vocab_size + 7).translate(["ein hund"])  # rows to spare do no harm


def test_a_directory_that_is_not_there_has_a_neighbour_with_a_similar_name(saved: Path) -> None:
    with pytest.raises(UserError, match=rf"no run directory '.*tinny'; did you mean '{saved.parent}/tiny'\?"):
        ph.load(saved.parent / "tinny")
    with pytest.raises(UserError, match=r"config\.json is a file; wanted the directory of a run"):
        ph.load(saved / "config.json")


def test_what_hugging_face_adds_is_passed_over(copy: Path) -> None:
    edited("config.json", transformers_version="5.0", torch_dtype="float32")(copy)
    edited("generation_config.json", transformers_version="5.0")(copy)
    (copy / "README.md").unlink()
    assert ph.load(copy).generation == GENERATION
    (copy / "generation_config.json").unlink()
    assert ph.load(copy).generation == GenerationConfig()


def unfinished(directory: Path) -> dict[str, torch.Tensor]:
    """A run with two checkpoints and no final weights; returns those of the newer one."""
    (directory / "model.safetensors").unlink()
    weights = {name: p.detach().clone() for name, p in run().model.named_parameters()}
    digest = {"tokenizer_sha256": tokenizer().sha256}
    for step in (9, 10):
        weights = {name: w + 0.25 for name, w in weights.items()}
        checkpoint.save_checkpoint(directory / "checkpoints", step, {"model": weights}, {}, extra=digest)
    return weights


def test_an_unfinished_run_has_the_weights_of_its_newest_checkpoint(copy: Path) -> None:
    weights = unfinished(copy)
    model = ph.load(copy).model
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    averages = {name: w * 2 for name, w in weights.items()}
    checkpoint.save_checkpoint(copy / "checkpoints", 11, {"model": weights, "ema": averages}, {}, extra={})
    assert all(torch.equal(p, averages[name]) for name, p in ph.load(copy).model.named_parameters())


def test_reading_a_run_at_work_disturbs_nothing(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    unfinished(copy)
    (copy / "checkpoints" / "step-10" / "model.safetensors").write_bytes(b"torn")
    half = copy / "checkpoints" / "step-12.tmp-999999-1"  # of a process on another machine, perhaps
    half.mkdir()
    ph.load(copy)
    assert half.is_dir()
    assert "passing over a damaged checkpoint" in caplog.text


def test_a_checkpoint_of_another_tokenizer_is_refused(copy: Path) -> None:
    unfinished(copy)
    other_tokenizer(copy)
    with pytest.raises(UserError, match="is not the tokenizer that the model was trained with"):
        ph.load(copy)


def test_scores_are_the_sums_of_the_logits_one_pair_at_a_time(saved: Path) -> None:
    loaded = ph.load(saved)
    sources = ["ein hund", "zwei hunde bellen . ein hund", "hund", "", "zwei"]
    targets = ["a dog barks", "dogs", "", "two dogs bark . a dog", "two"]
    t = loaded.tokenizer
    wanted = []
    with torch.inference_mode():
        for source, target in zip(sources, targets, strict=True):
            x, y = (t.encode([text])[0] for text in (source, target))
            log_p = loaded.model(torch.tensor([[*x, t.eos_id]]), torch.tensor([[t.bos_id, *y]])).log_softmax(
                -1
            )[0]
            wanted.append((sum(float(log_p[i, token]) for i, token in enumerate([*y, t.eos_id])), len(y) + 1))
    for budget in (2048, 20, 1):  # all in one batch, some, one by one
        scores = loaded.score(sources, targets, batch_tokens=budget)
        assert [s.tokens for s in scores] == [n for _, n in wanted]
        assert [s.log_prob for s in scores] == pytest.approx([p for p, _ in wanted], rel=1e-5)
    for budget in (0, -5):
        with pytest.raises(UserError, match=f"batch_tokens is {budget}; wanted a whole number, 1 or more"):
            loaded.score(sources, targets, batch_tokens=budget)
    mean = sum(p for p, _ in wanted) / sum(n for _, n in wanted)
    assert loaded.perplexity(sources, targets) == pytest.approx(math.exp(-mean), rel=1e-5)
    assert loaded.score([], []) == []


def test_options_that_translations_do_not_know_are_refused(saved: Path) -> None:
    with pytest.raises(
        UserError, match="max_new_tokens has no effect on translations; these have: batch_tokens, beam_size"
    ):
        ph.load(saved).translate(["a"], max_new_tokens=5)


def test_pairs_that_cannot_be_scored_are_named(saved: Path) -> None:
    loaded = ph.load(saved)
    with pytest.raises(UserError, match="1 sources and 2 targets: they must be line by line"):
        loaded.score(["a"], ["a", "b"])
    with pytest.raises(UserError, match=r"pair 2 has \d+ tokens; this model's max_len is 32"):
        loaded.score(["a", "b"], ["a", "zz " * 40])


def test_changes_of_one_call_do_not_stay(saved: Path) -> None:
    loaded = ph.load(saved)
    assert len(loaded.translate(["ein hund"], n_best=2)[0]) == 2
    assert loaded.generation == GENERATION
    with pytest.raises(UserError, match="beam_sise: unknown key; did you mean 'beam_size'"):
        loaded.translate(["ein hund"], beam_sise=3)


def test_attention_has_a_row_for_each_target_token_and_sums_to_one(saved: Path) -> None:
    loaded = ph.load(saved)
    source, target, weights = loaded.cross_attention("ein hund", "a dog")
    assert weights.shape == (1, 2, len(target), len(source))
    assert (source[-1], target[-1]) == ("■", "■")
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)


def test_evaluation_scores_what_is_translated(saved: Path) -> None:
    loaded = ph.load(saved)
    outputs = loaded.translate(TEXTS[:2])
    evaluation = loaded.evaluate(TEXTS[:2], outputs)
    assert evaluation.outputs == outputs
    assert [score.name for score in evaluation.scores] == ["bleu", "bleu-lc", "chrf"]
    with pytest.raises(
        UserError, match="evaluate measures the best translation of each source: leave n_best out"
    ):
        loaded.evaluate(TEXTS[:2], outputs, n_best=2)
    with pytest.raises(UserError, match="max_length_ratio: 1e\\+308 is out of range"):
        loaded.translate(TEXTS[:2], max_length_ratio=1e308)


@pytest.mark.parametrize("n", [0, -1])
def test_no_output_at_all_is_no_wish(saved: Path, n: int) -> None:
    with pytest.raises(UserError, match=f"n_best: {n} is out of range"):
        ph.load(saved).translate(["ein hund"], n_best=n)
    writer = run(kind="decoder")
    with pytest.raises(UserError, match=f"n is {n}; wanted 1 or more"):
        writer.generate(["ein hund"], n=n)
    with pytest.raises(UserError, match=f"n_best: {n} is out of range"):
        writer.generate(["ein hund"], n=n, beam_size=2)


def test_a_text_of_blanks_has_an_empty_translation() -> None:
    translator = run()
    assert translator.translate([" ", "", "\t\n", "ein"]) == ["", "", "", *translator.translate(["ein"])]


def test_an_output_that_must_be_longer_than_it_may_is_refused() -> None:
    writer = run(kind="decoder")
    with pytest.raises(UserError, match="min_new_tokens is 9, more than the 4 tokens"):
        writer.generate(["ein hund"], beam_size=2, max_new_tokens=4, min_new_tokens=9)
    with pytest.raises(UserError, match="min_new_tokens is 9, more than the 4 tokens"):
        writer.engine().submit("ein hund", beam_size=2, max_new_tokens=4, min_new_tokens=9)
    with pytest.raises(UserError, match="min_new_tokens is 9, more than the 4 tokens"):
        run().engine().submit("ein", min_new_tokens=9, max_length_ratio=0, max_length_extra=4)
    with pytest.raises(UserError, match="max_new_tokens has no effect on drawn translations"):
        run().engine().submit("ein", temperature=1.0, max_new_tokens=4)
    with pytest.raises(UserError, match="forbidden has no effect on the likeliest texts"):
        writer.generate(["ein hund"], beam_size=2, forbidden=["<unk>"])


def test_one_text_is_not_taken_for_a_list_of_its_letters() -> None:
    translator, writer, reader = run(), run(kind="decoder"), run(kind="encoder")
    for able, verb, lists in (
        (translator, "translate", 1),
        (translator, "hypotheses", 1),
        (translator, "score", 2),
        (translator, "perplexity", 2),
        (translator, "evaluate", 2),
        (writer, "generate", 1),
        (writer, "stream", 1),
        (writer, "hypotheses", 1),
        (writer, "score", 1),
        (writer, "perplexity", 1),
        (writer, "embed", 1),
        (reader, "embed", 1),
        (reader, "fill_mask", 1),
        (run(kind="encoder", labels=("n", "y")), "classify", 1),
    ):
        way = ", ".join(lists * ['["..."]'])
        told = f"run.{verb} wants a list of texts, got one text; write run.{verb}({way})"
        for text in ("ein hund", b"ein hund"):
            with pytest.raises(UserError, match=f"^{re.escape(told)}$"):
                getattr(able, verb)(*lists * [text])
    with pytest.raises(
        UserError, match=r'^prefix wants a list of texts, got one text; write prefix=\["..."\]$'
    ):
        translator.translate(["ein hund"], prefix="a")


def test_what_can_be_read_only_once_is_not_taken_for_no_text_at_all() -> None:
    """A generator would be read to its end by the first who looks at it, and be empty for the next."""
    translator, writer, reader = run(), run(kind="decoder"), run(kind="encoder")
    classifier = run(kind="encoder", labels=("n", "y"))
    asked: list[Callable[[Any], Any]] = [
        translator.translate,
        translator.hypotheses,
        writer.generate,
        writer.stream,
        writer.score,
        writer.perplexity,
        lambda texts: translator.score(texts, TEXTS),
        lambda texts: translator.score(TEXTS, texts),
        lambda texts: translator.translate(TEXTS, prefix=texts),
        lambda texts: translator.evaluate(texts, TEXTS),
        reader.embed,
        reader.fill_mask,
        classifier.classify,
    ]
    for ask in asked:
        with pytest.raises(
            UserError, match=r"wants a list of texts, got generator; write (prefix=|run\.\w+\()list\(texts\)"
        ):
            ask(text for text in TEXTS)
        with pytest.raises(
            UserError, match=r"wants a list of texts, got set; write (prefix=|run\.\w+\()list\(texts\)"
        ):
            ask(set(TEXTS))  # which has no order that what is made could be in
        with pytest.raises(UserError, match=r"wants a list of texts, got int$"):
            ask(7)
        with pytest.raises(UserError, match="text 0 is int, wanted a string"):
            ask([7] * len(TEXTS))
    most = reader.tokenizer.vocab_size - 1
    for ids in ([most + 1], [-1], [True], [0.5], ["a"], [None]):
        with pytest.raises(UserError, match=f"text 1 has no token .*; this model knows 0 to {most}"):
            reader.embed([TEXTS[0], ids])
    both = reader.embed([reader.tokenizer.encode(TEXTS)[0], TEXTS[0]])
    assert torch.equal(both[0], both[1])
    with pytest.raises(UserError, match=r"run\.evaluate wants a list of texts, got generator"):
        translator.evaluate(TEXTS, (text for text in TEXTS))  # type: ignore[arg-type]
    for stop, shown in ((None, "null"), (3, "3"), ([None], r"\[None\]")):
        for ask in (writer.generate, lambda texts, stop: writer.engine().submit(texts[0], stop=stop)):
            with pytest.raises(UserError, match=f"^stop is {shown}; wanted a text, or a list of texts"):
                ask(TEXTS, stop=stop)
    assert writer.score(dict.fromkeys(TEXTS).keys()) == writer.score(TEXTS)  # type: ignore[arg-type]
