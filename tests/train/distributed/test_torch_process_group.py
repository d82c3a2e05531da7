"""Tests of train/distributed/torch_process_group.py."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.train.several import together

from polyhead.train.distributed import torch_process_group
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.torch_process_group import find_backends


@pytest.mark.usefixtures("unsynced")
@pytest.mark.acceptance("G1")
def test_a_process_that_never_comes_is_not_waited_for() -> None:
    def never_come() -> None:
        torch_process_group.JOIN_TIMEOUT = 1.0
        if os.environ["RANK"] == "1":
            os._exit(0)

    first, other = together(2, lambda ranks: None, before=never_come)
    assert (first.code, other.code) == (RANK_LOST, 0)
    assert first.said == "not all of the 2 processes joined within 1 s"


@pytest.mark.usefixtures("unsynced")
def test_the_first_rank_may_have_gone_when_the_last_word_of_another_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All the work is done by then, so that this is no failure; the first one itself must hear the others."""

    def gone(key: str, text: str) -> None:
        raise RuntimeError("Connection reset by peer")

    ended: list[str] = []
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: ended.append("group"))
    other: Any = torch_process_group.TorchProcessGroup.__new__(torch_process_group.TorchProcessGroup)
    other.rank, other.world_size = 1, 2
    other.kv_store, other.heartbeat = (
        SimpleNamespace(write=gone),
        SimpleNamespace(stop=lambda: ended.append("pulse")),
    )
    other.close(None)
    assert ended == ["pulse", "group"]


@pytest.mark.usefixtures("unsynced")
@pytest.mark.acceptance("G5", "A6")
@pytest.mark.parametrize(
    ("gpus", "here", "wanted"),
    [(0, 2, "gloo"), (1, 2, "gloo"), (2, 2, "cpu:gloo,cuda:nccl"), (8, 2, "cpu:gloo,cuda:nccl")],
)
def test_gpus_talk_by_themselves_where_each_process_has_one(
    gpus: int, here: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert find_backends() == wanted
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert find_backends() == "gloo"


@pytest.mark.usefixtures("unsynced")
@pytest.mark.acceptance("G5", "A6")
def test_what_not_all_can_use_none_does() -> None:
    def work(ranks: ProcessGroup) -> Any:
        return [torch.distributed.get_backend(), ranks.all_reduce(1)]

    def pretend() -> None:
        able = "cpu:gloo,cuda:nccl" if os.environ["RANK"] == "1" else "gloo"
        torch_process_group.find_backends = lambda: able

    assert [end.said for end in together(2, work, before=pretend)] == [["gloo", [2.0]]] * 2
