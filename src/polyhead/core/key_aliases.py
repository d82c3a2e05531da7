"""Names that other toolkits use for recipe keys, parts, options and verbs, for error messages."""

from __future__ import annotations

from collections.abc import Mapping

# recipe key (or key=value) -> its names in other toolkits
KEY_ALIASES = {
    "data.train": "train_file train_files train_data train_path",
    "data.valid": "valid_file validation_file validation validation_data eval_file val dev",
    "data.test": "test_file test_files test_data",
    "data.source_lang": "src_lang source_language",
    "data.target_lang": "tgt_lang target_language",
    "tokenizer.vocab_size": "vocab n_vocab vocabulary_size",
    "tokenizer.kind.lowercase": "lowercase lower do_lower_case do_lower",
    "tokenizer.kind.normalize": "normalization normalizer normalization_rule_name",
    "model.d_model": "hidden_size n_embd embed_dim embedding_dim dim hidden_dim",
    "model.n_layers": "num_hidden_layers num_layers n_layer layers depth encoder_layers num_encoder_layers",
    "model.n_decoder_layers": "decoder_layers num_decoder_layers",
    "model.n_heads": "num_attention_heads num_heads n_head nhead heads encoder_attention_heads",
    "model.n_kv_heads": "num_key_value_heads num_kv_heads",
    "model.d_ff": "intermediate_size ffn_dim n_inner dim_feedforward ffn_hidden_size encoder_ffn_dim",
    "model.max_len": "max_length max_position_embeddings block_size context_length n_positions n_ctx "
    "max_seq_len max_seq_length",
    "model.feed_forward": "activation hidden_act activation_function",
    "model.dropout": "hidden_dropout_prob dropout_rate dropout_prob resid_pdrop",
    "model.attention.dropout": "attention_dropout attention_probs_dropout_prob attn_pdrop",
    "model.attention.window": "sliding_window window window_size",
    "model.attention.qk_norm": "qk_norm use_qk_norm qk_layernorm",
    "model.attention.bias": "bias attention_bias qkv_bias use_bias",
    "model.feed_forward=moe": "n_experts num_experts num_local_experts experts",
    "model.norm.eps": "layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps eps",
    "model.position=rope": "rotary use_rope",
    "model.position.theta": "rope_theta theta rope_base rotary_base",
    "model.tie_embeddings": "tie_word_embeddings tie_weights",
    "model.norm_first": "pre_norm normalize_before",
    "train.lr": "learning_rate",
    "train.max_tokens": "batch_size per_device_train_batch_size train_batch_size micro_batch_size",
    "train.steps": "max_steps train_steps num_train_steps max_iters max_updates",
    "train.epochs": "num_train_epochs num_epochs max_epochs n_epochs",
    "train.accumulate": "gradient_accumulation_steps grad_accum accumulate_grad_batches update_freq",
    "train.clip_norm": "max_grad_norm grad_clip gradient_clip_val clip_grad_norm",
    "train.optimizer": "optim",
    "train.optimizer.weight_decay": "weight_decay",
    "train.optimizer.beta1": "betas adam_beta1 beta1",
    "train.optimizer.beta2": "adam_beta2 beta2",
    "train.optimizer.eps": "adam_epsilon adam_eps eps",
    "train.schedule": "lr_scheduler_type lr_scheduler scheduler lr_schedule",
    "train.schedule.warmup": "warmup_steps warmup num_warmup_steps warmup_iters warmup_updates warmup_ratio",
    "train.schedule.cooldown": "cooldown cooldown_steps",
    "train.label_smoothing": "label_smoothing_factor",
    "train.device": "gpu gpus cuda accelerator",
    "train.save_every": "save_steps save_interval",
    "train.eval_every": "eval_steps eval_interval",
    "train.log_every": "logging_steps log_interval log_steps",
    "train.keep": "save_total_limit",
    "train.patience": "early_stopping_patience early_stopping",
    "train.precision=fp16": "fp16",
    "train.precision=bf16": "bf16",
    "train.precision": "mixed_precision amp dtype torch_dtype",
    "train.recompute=blocks": "gradient_checkpointing activation_checkpointing activation_checkpoint "
    "checkpoint_activations use_checkpoint use_gradient_checkpointing recompute_granularity",
    "train.lora": "adapt peft adapter",
    "train.lora.r": "rank lora_r lora_rank r",
    "train.lora.alpha": "lora_alpha",
    "train.lora.dropout": "lora_dropout",
    "train.lora.target_modules": "parts target_modules lora_target_modules",
    "train.lora.modules_to_save": "learn modules_to_save",
    "train.lora.base": "load_in_4bit quantize_base quantization_bit qlora",
    "train.average_checkpoints": "average checkpoint_average",
    "train.best_metric": "metric metric_for_best_model",
    "init_from.run": "model_name_or_path pretrained_model start",
    "init_from.layer_stride": "every",
    "distill.teacher": "run teachers teacher_model teacher_model_name_or_path teacher_name_or_path",
    "distill.logits_weight": "logits alpha_ce",
    "distill.labels_weight": "labels alpha_mlm",
    "distill.hidden_weight": "hidden alpha_cos",
    "model.layer_pattern": "pattern layer_types",
    "model.n_segments": "segments type_vocab_size",
    "model.lm_head": "head",
    "model.generator_layers": "generator",
    "model.head_transform_activation": "head_activation classifier_activation",
    "model.head_transform_bias": "map_bias",
    "model.lm_head_bias": "head_bias",
    "model.residual_scale": "scale_residual residual_multiplier",
    "model.logits_scale": "scale_output logits_scaling",
    "data.valid_fraction": "valid_share validation_split val_size",
    "data.document_separator": "documents",
    "data.cache_dir": "cache",
    "data.max_len": "max_length block_size max_seq_len max_seq_length",
    "generation.beam_size": "num_beams beams beam beam_width",
    "generation.n_best": "num_return_sequences nbest",
    "generation.max_new_tokens": "max_tokens max_length max_gen_len",
    "generation.min_new_tokens": "min_tokens min_length",
    "generation.length_penalty": "lenpen length_alpha",
    "generation.stop_tokens": "ends eos_token_id stop_token_ids",
    "generation.bad_words": "forbidden bad_words_ids suppress_tokens",
    "generation.grammar": "form guided_grammar",
    "generation.speculative": "speculate speculative_config",
    "generation.embed_max_len": "max_text_len",
    "generation.embed_prompts": "prompts",
    "generation.embed_prompt": "prompt default_prompt_name",
    "generation.include_prompt": "pool_prompt",
    "generation.score_activation": "sigmoid",
    "generation.batch_tokens": "batch_size eval_batch_size",
    "generation.cache.window": "window sliding_window",
    "generation.cache.bits": "bits cache_bits",
    "out": "output output_dir out_dir save_dir",
}
# kind of part, or key whose values are names -> name -> its names in other toolkits
NAME_ALIASES = {
    "task": {"replaced-token-detection": "replaced-tokens rtd electra", "language-model": "lm clm causal_lm",
        "masked-lm": "mlm", "translation": "mt nmt seq2seq"},
    "block": {"conv": "convolution cnn", "gated_conv": "glu"},
    "kind": {"decoder": "gpt decoder_only causal", "encoder": "bert encoder_only",
        "encoder-decoder": "seq2seq t5"},
    "attention": {"softmax": "mha multihead multi_head gqa mqa sdpa full self"},
    "position": {"rope": "rotary rotary_embedding", "none": "nope null", "sinusoidal": "sin sincos absolute",
        "t5": "relative"},
    "norm": {"layernorm": "ln layer", "rmsnorm": "rms"},
    "feed_forward": {"moe": "experts mixture_of_experts mixture", "gelu": "mlp ffn",
        "swiglu": "silu_glu llama"},
    "tokenizer": {"unigram": "sentencepiece spm", "bpe": "bbpe byte_level"},
    "pooling": {"first": "cls [cls]", "mean": "average avg"},
}  # fmt: skip
# option name in other toolkits -> command-line option(s)
OPTION_ALIASES = {
    "o": "output out", "output-dir": "out output", "output-file": "output out", "out": "output",
    "output": "out", "file": "output",
    "format": "to", "from": "source", "to": "target", "src": "source", "tgt": "target",
    "src-lang": "source-lang",
    "tgt-lang": "target-lang", "gpu": "device", "cuda": "device", "fp16": "dtype", "bf16": "dtype",
    "precision": "dtype",
    "batch-size": "batch-tokens", "num-return-sequences": "n-best n", "with": "ensemble", "nbest": "n-best",
    "rows": "max-num-seqs batch-size", "chunk": "read-batch prefill-chunk", "form": "grammar",
    "speculate": "speculative", "cors-origin": "allowed-origins", "cors-origins": "allowed-origins",
    "cors-allow-origin": "allowed-origins",
    "max-waiting": "max-queue", "stall": "engine-timeout", "grace": "shutdown-timeout",
    "strict": "strict-fields", "each": "per-token", "always": "frequent",
    "length": "seq-len", "decode-rows": "decode-batch", "context": "context-len", "tokens": "train-tokens",
}  # fmt: skip
# verb -> its names in other toolkits
VERB_ALIASES = {
    "train": "fit finetune fine-tune pretrain learn", "eval": "evaluate test validate measure bleu",
    "init": "recipe new config configure prepare",
    "generate": "sample complete completion", "translate": "predict infer inference decode",
    "chat": "interactive talk",
    "serve": "server api web ui start", "import": "download pull convert", "export": "save publish",
    "env": "version info doctor",
    "components": "parts list ls", "estimate": "plan cost", "compare": "sweep search ablate grid",
    "params": "sizes parameters count summary",
    "attention": "attend", "visualize": "draw plot", "classify": "label", "convert-gqa": "convert-heads",
    "experiments": "lab",
}  # fmt: skip
KEY_NOTES = {
    "train.max_tokens": "in tokens, not in rows",
    "generation.batch_tokens": "in tokens, not in rows",
    "generation.stop_tokens": "tokens by their names",
    "train.optimizer.beta1": "with beta2",
    "train.schedule.warmup": "in steps",
}
"""Keys with a different unit or form than in other toolkits."""


def aliased_keys(name: object) -> list[str]:
    """The recipe keys that have this name in other toolkits, most likely first."""
    plain = str(name).replace("-", "_").lower()
    return [key for key, names in KEY_ALIASES.items() if plain in names.split()]


def aliased_name(kind: str, name: object) -> str:
    """Our name for a part of this kind that other toolkits call ``name``; empty if unknown."""
    plain = str(name).replace("-", "_").lower()
    return next((ours for ours, names in NAME_ALIASES.get(kind, {}).items() if plain in names.split()), "")


def hint_text(spellings: Mapping[str, str]) -> str:
    """``; did you mean 'train.lr'?`` for a mapping of keys to their spelling in the current context."""
    note = next((f" ({KEY_NOTES[key]})" for key in spellings if key in KEY_NOTES), "")
    return f"; did you mean {' or '.join(map(repr, spellings.values()))}{note}?" if spellings else ""
