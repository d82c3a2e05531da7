"""Explanations of the served model: opened again if packed, one at a time, limited in number and length."""

import asyncio
import shutil
import threading
from functools import partial

import pytest
from tests.serve.conftest import build_run

import polyhead
from polyhead.explain.document import explain
from polyhead.kernels.pack_model import is_packed
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.serve import explainer as explainer_module
from polyhead.serve.api_errors import ApiError
from polyhead.serve.explainer import MAX_PENDING, Explainer


def explain_now(explainer, text, target=None):
    return asyncio.run(explainer.explain_text(text, target, None, None))


@pytest.fixture
def blocked_explainer(runs, monkeypatch):
    """An explainer whose explanations wait for an event."""
    explainer, may_finish = Explainer(runs["decoder"]), threading.Event()
    monkeypatch.setattr(explainer_module, "explain", lambda *_, **__: may_finish.wait(100) and {})
    yield explainer, may_finish
    explainer.close()


@pytest.mark.parametrize("change", ["none", "retrained", "removed"])
def test_packed_model_is_explained_as_it_was_loaded(change, tmp_path):
    build_run("decoder").save(directory := tmp_path / "run")
    expected = explain(polyhead.load(directory, device="cpu"), "a dog barks", has_lever_cases=False)
    explainer = Explainer(polyhead.load(directory, fast=True))
    if change == "retrained":
        shutil.rmtree(directory)
        build_run("decoder", d_ff=64).save(directory)
    elif change == "removed":
        shutil.rmtree(directory)
    assert explainer.obstacle == ""
    assert explain_now(explainer, "a dog barks") == explain_now(explainer, "a dog barks") == expected
    assert explainer.obstacle == ""  # also once its weights are read
    explainer.close()


def test_obstacles_of_packed_weights_and_ensembles(tmp_path):
    run = build_run("decoder")
    run.save(tmp_path)
    packed_run = polyhead.load(tmp_path, fast=True)
    if is_packed(packed_run.model):
        packed_run.directory = None
        assert "packed weights" in Explainer(packed_run).obstacle
    assert "ensemble of 2" in Explainer(ensemble_runs([run, build_run("decoder")])).obstacle
    assert Explainer(run).obstacle == ""


def test_served_model_gets_no_hooks():
    run = build_run("encoder-decoder")
    explainer = Explainer(run)
    explain_now(explainer, "a dog barks", "ein hund bellt")
    assert explainer._run.model is not run.model
    assert next(explainer._run.model.parameters()) is next(run.model.parameters())
    assert all(not module._forward_hooks for module in run.model.modules())
    explainer.close()


def test_too_many_explanations_are_refused(blocked_explainer):
    explainer, may_finish = blocked_explainer

    async def explain_many():
        explain_dog = partial(explainer.explain_text, "a dog", None, None, None)
        tasks = [asyncio.create_task(explain_dog()) for _ in range(MAX_PENDING)]
        while explainer._num_pending < MAX_PENDING:
            await asyncio.sleep(0)
        with pytest.raises(ApiError) as error:
            await explainer.explain_text("a dog", None, None, None)
        assert (error.value.status, error.value.code) == (429, "overloaded")
        may_finish.set()
        return [*await asyncio.gather(*tasks), await explainer.explain_text("a dog", None, None, None)]

    assert asyncio.run(explain_many()) == [{}] * (MAX_PENDING + 1)


def test_cancelled_request_leaves_the_queue(blocked_explainer):
    explainer, may_finish = blocked_explainer

    async def cancel():
        explain_dog = partial(explainer.explain_text, "a dog", None, None, None)
        first, second = (asyncio.create_task(explain_dog()) for _ in range(2))
        while explainer._num_pending < 2:
            await asyncio.sleep(0)
        second.cancel()
        while explainer._num_pending > 1:
            await asyncio.sleep(0)
        may_finish.set()
        assert await first == {}

    asyncio.run(cancel())


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("dog " * 600, None, "at most 512 are explained"),
        (" \n", None, "text is empty: expected text"),
        ("a dog", "", "target is empty: expected text"),
        ("a dog " * 30, None, "the model's maximum is 47"),
    ],
    ids=["too long", "blank", "no target", "above max_len"],
)
def test_invalid_texts_are_refused(runs, text, target, message):
    explainer = Explainer(runs["encoder-decoder"])
    with pytest.raises(ApiError, match=message) as error:
        explain_now(explainer, text, target)
    assert error.value.status == 400
    explainer.close()
