"""A tiny hybrid model: its configuration for the lab, and all that a server needs to serve it with random weights.

    python -m analyzers.vllm_lab.model DIR

Three Gated DeltaNet layers and one of full attention, of which vLLM makes three Mamba groups and one attention
group. The tokenizer knows the words `w3` to `w511`. Nothing is downloaded; weights come from `--load-format dummy`.
vLLM chooses the dtype of the states by the CPU's instruction set; with `--mamba-ssm-cache-dtype float32` a block has
640 tokens on every CPU.
"""

import json
import sys
from pathlib import Path
from typing import Any

from otel_cache.errors import UsageError

SERVED_VOCABULARY = 512


def model_config(vocabulary: int = SERVED_VOCABULARY, positions: int = 32768) -> dict[str, Any]:
    """Return the content of config.json; `positions` is the longest sequence, in tokens."""
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        # The layer that multi-token prediction speculates with.
        "num_nextn_predict_layers": 1,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": "bfloat16",
    }


def write_config(folder: Path, vocabulary: int = SERVED_VOCABULARY, positions: int = 32768) -> None:
    """Write config.json alone: enough for vLLM's configuration and its scheduler."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model_config(vocabulary, positions), indent=1))


def write_model(folder: Path) -> None:
    """Write configuration and tokenizer: what vLLM's servers need."""
    write_config(folder)
    special = {"<unk>": 0, "<eos>": 1, "<pad>": 2}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": text, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for text, number in special.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": special | {f"w{number}": number for number in range(3, SERVED_VOCABULARY)},
            "unk_token": "<unk>",
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "model_max_length": 32768,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def main(arguments: list[str]) -> None:
    """Write the servable model into the folder that is named."""
    if len(arguments) != 1:
        raise UsageError("usage: python -m analyzers.vllm_lab.model DIR")
    write_model(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
