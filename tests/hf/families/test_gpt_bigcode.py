from tests.hf.families.causal import CausalFamily


class TestGptBigcode(CausalFamily, names=["gpt_bigcode"]): ...
