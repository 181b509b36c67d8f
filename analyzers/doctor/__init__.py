"""What `otel-cache doctor` looks at: everything between a vLLM and the back end that can keep traces from arriving."""
