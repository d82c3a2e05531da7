"""Limits of the service: sizes and timeouts, with safe defaults."""

from __future__ import annotations

from pydantic import Field

from polyhead.config.config_sections import ConfigSection


class Limits(ConfigSection):
    """Limits in bytes, counts and seconds. A text that exceeds a size is rejected, never truncated."""

    max_queue: int = Field(
        256, gt=0, description="maximum number of queued texts; further requests get status 429"
    )
    max_batch: int = Field(32, gt=0, description="maximum number of texts per request or model call")
    max_embeddings: int = Field(
        2048,
        gt=0,
        description="maximum number of texts per embeddings or rerank request, split into calls, and of "
        "embeddings in a response",
    )
    max_chars: int = Field(32_768, gt=0, description="maximum number of characters per text")
    max_body: int = Field(2 * 2**20, gt=0, description="maximum number of bytes per request")
    max_header: int = Field(
        16 * 2**10, gt=0, description="maximum number of bytes of the request line and headers"
    )
    max_n: int = Field(8, gt=0, description="maximum number of outputs per text")
    max_beams: int = Field(16, gt=0, description="maximum number of beams")
    max_tokens: int = Field(4096, gt=0, description="maximum number of new tokens per output")
    max_connections: int = Field(1024, gt=0, description="maximum number of open connections")
    header_timeout: float = Field(10.0, gt=0, description="seconds to receive the headers")
    body_timeout: float = Field(30.0, gt=0, description="seconds to receive the body")
    timeout: float = Field(120.0, gt=0, description="time limit of a request, in seconds")
    write_timeout: float = Field(
        20.0, gt=0, description="seconds that a client may leave its response unread"
    )
    engine_timeout: float = Field(
        2.0, gt=0, description="seconds without progress of the model after which it counts as hung"
    )
    shutdown_timeout: float = Field(30.0, gt=0, description="seconds to finish accepted requests on shutdown")
