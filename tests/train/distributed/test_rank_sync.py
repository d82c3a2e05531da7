import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.train.conftest import Notes, with_data, with_train, write_corpus
from tests.train.distributed.rank_runs import assert_close, recipe_of, train
from tests.train.ranks import outputs_of, run_ranks

from polyhead.checkpoint import checkpoint
from polyhead.train import loop
from polyhead.train import run_training as run_training_module
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.acceptance("G5", "A6")]


@pytest.mark.parametrize("moment", ["start", "later"])
def test_drifting_weights_are_replaced_by_rank_0(moment, corpus_dir):
    """As on processors that round differently, only more."""
    recipe = recipe_of(corpus_dir, "translation", f"drift-{moment}", steps=5)

    def work(ranks):
        digests, finish, step = [], run_training_module._evaluate_final_weights, loop.train_step
        build = run_training_module.build
        if ranks.rank and moment == "start":
            run_training_module.build = lambda config, seed: build(config, seed + 1)

        def drift(strategy, *args):
            training = strategy.training
            if ranks.rank and moment == "later" and training.progress.step == 4:
                for w in training.model.parameters():
                    w.data.add_(1e-3)
            return step(strategy, *args)

        def note_digest(run, *args):  # in the end all have the average
            content = b"".join(p.detach().numpy().tobytes() for p in run.model.parameters())
            digests.append(hashlib.sha256(content).hexdigest())
            return finish(run, *args)

        run_training_module._evaluate_final_weights, loop.train_step = note_digest, drift
        run_training(recipe, report=Notes(), ranks=ranks)
        return digests[0]

    first, second = outputs_of(2, work)
    assert first == second
    if moment == "start":
        single = recipe_of(corpus_dir, "translation", "drift-none", steps=5)
        assert_close(train(single, 1)["final"], load_file(recipe.out / "model.safetensors"))


def test_machines_without_shared_files_train_and_resume(corpus_dir, tmp_path):
    recipe = recipe_of(corpus_dir, "translation", "machines-1")
    single = train(recipe, 1)

    def work(ranks):
        directory = tmp_path / f"machine-{ranks.rank // 2}"
        directory.mkdir(exist_ok=True)
        os.chdir(directory)
        local = with_data(recipe, cache_dir=None).model_copy(update={"out": Path("run")})
        run_training(with_train(local, steps=2), report=Notes(), ranks=ranks)
        run_training(local, report=Notes(), ranks=ranks, resume=True)
        return sorted(path.name for path in Path("run").iterdir())

    outputs = outputs_of(4, work, machines=2)
    assert "model.safetensors" in outputs[0]
    assert outputs[2] == outputs[3] == ["data"]
    assert_close(single["final"], load_file(tmp_path / "machine-0/run/model.safetensors"))


@pytest.mark.slow
def test_broadcast_tokenizer_does_not_depend_on_locale():
    script = textwrap.dedent(r"""
        import sys
        from types import SimpleNamespace as Ranks
        from polyhead.core.registry import Choice
        from polyhead.tokenizers.train_tokenizer import train_tokenizer
        from polyhead.train.distributed.rank_sync import broadcast_tokenizer
        first, sent = train_tokenizer(["ein H\u00fcnd bellt \u72d7"], Choice("char"), 60), []
        rank_0 = Ranks(world_size=2, on_rank0=lambda files: sent.append(files()) or sent[0])
        broadcast_tokenizer(rank_0, lambda: first)
        second = broadcast_tokenizer(Ranks(world_size=2, on_rank0=lambda files: sent[0]), lambda: None)
        assert second.sha256 == first.sha256 and "\u72d7" in sent[0]["tokenizer.json"]
        print(sys.getfilesystemencoding())
    """)
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=locale)
    assert process.stdout == "ascii\n", process.stderr[-500:]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text", "rank 1: the training text, the validation text, the test text: differs from rank 0; all"),
        ("recipe", "rank 1: the recipe: differs from rank 0"),
        ("files", "rank 1: data.train: no file 'train.de'"),
    ],
)
def test_difference_between_ranks_is_refused(name, message, corpus_dir, tmp_path):
    if name == "text":
        write_corpus(tmp_path, n=41)
    recipe = recipe_of(corpus_dir, "translation", f"other-{name}")
    recipe = with_data(recipe, test=recipe.data.train)
    other = with_train(recipe, lr=1e-4) if name == "recipe" else with_data(recipe, root=tmp_path)

    def work(ranks):
        run_training(other if ranks.rank else recipe, report=Notes(), ranks=ranks)

    first, second = run_ranks(2, work)
    assert (first.code, second.code) == (69, 2), (first, second)
    assert second.output.startswith(message)
    assert first.output == ""  # rank 1 has printed it
    assert not checkpoint.list_steps(recipe.out / "checkpoints")
    assert not (recipe.out / "run.lock").exists()
