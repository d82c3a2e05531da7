from tests.hf.families.causal import CausalFamily


class TestMoe(CausalFamily, names=["mixtral", "qwen3_moe"]): ...
