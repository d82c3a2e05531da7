"""Read and write Hugging Face checkpoints: a directory of JSON and safetensors. No code of a checkpoint is
executed but its chat template, in a sandbox.
"""
