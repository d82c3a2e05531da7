from tests.hf.families.causal import CausalFamily


class TestQwen(CausalFamily, names=["qwen2", "qwen3"]): ...
