import pytest
from tests.kernels.build_extension_helpers import clear_kernels


@pytest.fixture
def reset_kernels():
    clear_kernels()
    yield
    clear_kernels()
