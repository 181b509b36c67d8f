"""A user's program: turns the instrumentation on itself, then serves one request that comes with a trace context.

    python program.py MODEL TRACEPARENT

vLLM's own tracing is off in it. It ends when its stdin does.
"""

import asyncio
import sys


async def serve(model: str, traceparent: str) -> None:
    """Make an engine, serve the request, and say that it was served."""
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model,
            load_format="dummy",
            dtype="bfloat16",
            mamba_ssm_cache_dtype="float32",
            enforce_eager=True,
            max_model_len=8192,
            max_num_seqs=4,
        )
    )
    try:
        prompt = {"prompt_token_ids": 4 * list(range(10, 500))}
        sampling = SamplingParams(max_tokens=3, temperature=0)
        async for output in engine.generate(prompt, sampling, "mine", trace_headers={"traceparent": traceparent}):
            if output.finished:
                print("served", len(output.outputs[0].token_ids), flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    from otel_cache.opentelemetry_instrumentor import VLLMCacheInstrumentor

    VLLMCacheInstrumentor().instrument()
    asyncio.run(serve(*sys.argv[1:]))
