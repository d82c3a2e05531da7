from tests.hf.families.seq2seq import Seq2SeqFamily


class TestPegasus(Seq2SeqFamily, names=["pegasus"]): ...
