from tests.hf.families.causal import CausalFamily


class TestOlmo3(CausalFamily, names=["olmo3"]): ...
