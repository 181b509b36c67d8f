"""Spans out of a tracing back end, into a capture."""
