"""The endpoint that explains a text: the walk through the served model, and its levers."""

from __future__ import annotations

from polyhead.serve.api_errors import ApiError, invalid_value_error
from polyhead.serve.http.http_exchange import HttpExchange
from polyhead.serve.openai.schemas import ExplainBody
from polyhead.serve.service import Service
from polyhead.serve.strict_json import dump_json

LARGE_DOCUMENT = 10**6  # characters, as which a document counts that is encoded outside of the event loop


async def create_explanation(service: Service, exchange: HttpExchange, body: ExplainBody) -> None:
    """Return the explanation of a text, or with ``lever`` what one setting of it changes."""
    if obstacle := service.explainer.obstacle:
        raise ApiError(400, "wrong_task", obstacle, "model")
    has_lever = "lever" in body.model_fields_set
    if not has_lever and "setting" in body.model_fields_set:
        raise invalid_value_error("setting", "setting: requires a lever")
    fields = body.model_fields_set
    target = body.target if "target" in fields else None
    first = body.first if "first" in fields else None
    n_shown = body.n_shown if "n_shown" in fields else None
    if not has_lever:
        document = await service.explainer.explain_text(body.text, target, first, n_shown)
    else:
        document = await service.explainer.explain_lever(
            body.text, target, first, n_shown, name=body.lever, setting=body.setting
        )
        document = {"object": "explain.lever", "model": service.name, **document}
    await exchange.send_json(await service.run_in_executor(lambda: dump_json(document), LARGE_DOCUMENT))
