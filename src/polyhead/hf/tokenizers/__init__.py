"""Tokenizer files of Hugging Face checkpoints other than tokenizer.json."""
