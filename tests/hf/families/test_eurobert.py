from tests.hf.families.encoders import EncoderFamily


class TestEurobert(EncoderFamily, names=["eurobert"]): ...
