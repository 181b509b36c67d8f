"""vLLM's own scheduler, KV-cache manager and block pool on a CPU, driven by scenarios; no weights, no GPU."""
