"""Explanations of the served model: loaded again if packed, one at a time, limited in number and length."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import polyhead
from polyhead.explain.document import explain
from polyhead.kernels.pack_model import is_packed
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.serve import explainer as explainer_module
from polyhead.serve.explainer import MAX_PENDING, Explainer
from polyhead.serve.http.errors import ApiError


def explain_now(explainer: Explainer, text: str, target: str | None = None) -> dict:
    return asyncio.run(explainer.explain_text(text, target, None, None))


def test_a_packed_model_is_explained_from_its_directory(tmp_path: Path, maker):
    maker("decoder").save(tmp_path)
    run = polyhead.load(tmp_path, fast=True)
    explainer = Explainer(run)
    assert explainer.obstacle == ""
    document = explain_now(explainer, "a dog barks")
    plain = explain(polyhead.load(tmp_path, device="cpu"), "a dog barks", has_lever_cases=False)
    assert document == plain
    assert explainer.obstacle == ""  # also once it is loaded
    explainer.close()


def test_what_cannot_be_explained_says_why(tmp_path: Path, maker):
    maker("decoder").save(tmp_path)
    run = polyhead.load(tmp_path, fast=True)
    if is_packed(run.model):
        run.directory = None
        assert "packed weights" in Explainer(run).obstacle
    members = [maker("decoder"), maker("decoder")]
    assert "ensemble of 2" in Explainer(ensemble_runs(members)).obstacle
    assert Explainer(members[0]).obstacle == ""


def test_the_served_model_gets_no_hooks(maker):
    run = maker("encoder-decoder")
    explainer = Explainer(run)
    explain_now(explainer, "a dog barks", "ein hund bellt")
    assert explainer._run.model is not run.model
    assert next(explainer._run.model.parameters()) is next(run.model.parameters())
    assert all(not part._forward_hooks for part in run.model.modules())
    explainer.close()


def test_too_many_explanations_are_refused(monkeypatch: pytest.MonkeyPatch, maker):
    explainer, may_finish = Explainer(maker("decoder")), threading.Event()
    monkeypatch.setattr(explainer_module, "explain", lambda *_, **__: may_finish.wait(20) and {})

    async def ask_often() -> list[object]:
        tasks = [
            asyncio.create_task(explainer.explain_text("a dog", None, None, None)) for _ in range(MAX_PENDING)
        ]
        await asyncio.sleep(0.05)
        with pytest.raises(ApiError) as refusal:
            await explainer.explain_text("a dog", None, None, None)
        assert (refusal.value.status, refusal.value.code) == (429, "overloaded")
        may_finish.set()
        answers = await asyncio.gather(*tasks)
        return [*answers, await explainer.explain_text("a dog", None, None, None)]

    assert asyncio.run(ask_often()) == [{}] * (MAX_PENDING + 1)
    explainer.close()


def test_a_cancelled_request_leaves_the_queue(monkeypatch: pytest.MonkeyPatch, maker):
    explainer, may_finish = Explainer(maker("decoder")), threading.Event()
    monkeypatch.setattr(explainer_module, "explain", lambda *_, **__: may_finish.wait(20) and {})

    async def cancel() -> None:
        first, second = (
            asyncio.create_task(explainer.explain_text("a dog", None, None, None)) for _ in range(2)
        )
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0.05)
        assert explainer._num_pending == 1
        may_finish.set()
        assert await first == {}

    asyncio.run(cancel())
    explainer.close()


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("dog " * 600, None, "at most 512 are explained"),
        (" \n", None, "text is empty: expected text"),
        ("a dog", "", "target is empty: expected text"),
        ("a dog " * 30, None, "the model's maximum is 47"),
    ],
)
def test_texts_are_limited(text: str, target: str | None, message: str, maker):
    explainer = Explainer(maker("encoder-decoder"))
    with pytest.raises(ApiError, match=message) as refusal:
        explain_now(explainer, text, target)
    assert refusal.value.status == 400
    explainer.close()
