"""A user's program: vLLM's engine serves one prompt four times. `python offline.py MODEL`; prints the cached tokens."""

import random
import sys


def main(model: str) -> None:
    """Serve the prompt and print, send by send, how many of its tokens came from the cache."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=model,
        load_format="dummy",
        dtype="bfloat16",
        mamba_ssm_cache_dtype="float32",
        enforce_eager=True,
        max_model_len=8192,
        max_num_seqs=4,
        max_num_batched_tokens=8192,
        enable_prefix_caching=True,
    )
    generator = random.Random(1)
    prompt = [generator.randrange(10, 500) for _ in range(3000)]
    for _ in range(4):
        (answer,) = engine.generate(
            {"prompt_token_ids": prompt}, SamplingParams(max_tokens=3, temperature=0), use_tqdm=False
        )
        print("cached", answer.num_cached_tokens, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
