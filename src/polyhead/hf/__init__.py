"""Checkpoints as they are published: a directory of JSON and safetensors, read and written, never executed."""
