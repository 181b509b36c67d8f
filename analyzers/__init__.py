"""Explains, from exported spans, why prompt tokens were not served from vLLM's prefix cache."""
