"""What this package is called and which vLLM versions it was tested with."""

VERSION = "0.1.0"
SCOPE = "otel_cache"
TESTED_VLLM = ("0.26", "0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
