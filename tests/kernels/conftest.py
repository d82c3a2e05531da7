"""Fixtures of the tests of kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kernels.build_extension_helpers import clear_kernels


@pytest.fixture
def reset_kernels() -> Iterator[None]:
    """Kernels loaded within a test are not those of other tests."""
    clear_kernels()
    yield
    clear_kernels()
