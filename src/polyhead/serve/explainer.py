"""Explanations of the served model: a copy with plain weights, and a thread that computes one at a time.

The engine's model is packed for inference, which hides what its parts compute. The copy is opened when the
service starts, so that it explains what is served whatever becomes of the directory; its weights are read in
fp32 when the first explanation is requested.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.explain.document import check_explainable, choose_shown, explain
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers.lever_input import copy_modules
from polyhead.explain.levers.table import explain_case
from polyhead.kernels.pack_model import is_packed
from polyhead.run.load import materialize_run, open_directory
from polyhead.run.run import Run
from polyhead.run.run_examples import TextExample
from polyhead.serve.api_errors import ApiError, invalid_value_error, overloaded_error, wait_for_result

MAX_PENDING = 8  # explanations that are computed or wait
MAX_EXPLAINED_TOKENS = 512  # of a text; attention of all heads is kept in memory


class Explainer:
    """Computes explanations of a run, one after the other, in a thread of its own.

    ``examples`` are the pairs in which a translator finds the target of a text.
    """

    def __init__(self, run: Run, examples: Sequence[TextExample] = ()) -> None:
        self._served_run, self._examples = run, examples
        self._is_mapped = is_packed(run.model) and run.directory is not None and len(run.members) == 1
        # recording hooks must not see what the engine computes
        self._run = _open_again(run) if self._is_mapped else _copy_run(run)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="polyhead-explain")
        self._num_pending = 0

    @property
    def obstacle(self) -> str:
        """Why the run cannot be explained: an ensemble, or packed weights from nowhere; "" if it can."""
        try:
            check_explainable(self._run)
        except UserError as error:
            return str(error)
        return ""

    async def explain_text(
        self,
        text: str,
        target: str | None = None,
        first: int | None = None,
        n_shown: int | None = None,
        lever: str | None = None,
        setting: dict[str, Any] | None = None,
        attention: str | None = None,
    ) -> dict[str, Any]:
        """The whole document, with levers that have no cases; or one setting of one lever.

        429 if too many explanations wait.
        """

        def work() -> dict[str, Any]:
            run = self._load_run()
            _check_length(run, text, target)
            if lever is None:
                return explain(
                    run,
                    text,
                    target,
                    first=first,
                    n_shown=n_shown,
                    examples=self._examples,
                    has_lever_cases=False,
                )
            inputs = read_inputs(run, text, target, self._examples)
            windows = choose_shown(run.config, inputs, first, n_shown)
            return explain_case(run, inputs, windows, lever, setting or {}, attention)

        if self._num_pending >= MAX_PENDING:
            raise overloaded_error(f"{self._num_pending} explanations")
        return await wait_for_result(self._submit(work))

    def close(self) -> None:
        """Stop the thread; an explanation that is being computed is finished first."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, work: Callable[[], dict[str, Any]]) -> Future[dict[str, Any]]:
        def count_finished(_: Any) -> None:
            self._num_pending -= 1

        self._num_pending += 1
        future = self._pool.submit(work)
        future.add_done_callback(count_finished)
        return future

    def _load_run(self) -> Run:
        if self._is_mapped:
            materialize_run(self._run, self._served_run.device)
            self._is_mapped = False
        return self._run


def _open_again(run: Run) -> Run:
    """The run with the weights in its directory, memory-mapped; warnings about it have been logged before."""
    assert run.directory is not None
    logging.disable(logging.WARNING)
    try:
        return open_directory(run.directory)
    finally:
        logging.disable(logging.NOTSET)


def _copy_run(run: Run) -> Run:
    """The run with a copy of its modules, which share the weights."""
    copied = copy.copy(run)
    if len(run.members) == 1:
        copied.replace_model(copy_modules(run.model))
    return copied


def _check_length(run: Run, text: str, target: str | None) -> None:
    """400 for a text of more tokens than are explained, or an empty one."""
    for name, value in (("text", text), ("target", target)):
        if value is not None and is_blank(value):
            raise invalid_value_error(name, f"{name} is empty: expected text")
    longest = max(map(len, run.tokenizer.encode([text] if target is None else [text, target])))
    if longest > MAX_EXPLAINED_TOKENS:
        message = f"the text has {longest} tokens; at most {MAX_EXPLAINED_TOKENS} are explained"
        raise ApiError(400, "text_too_long", message, "text")
