"""The sidecar process: receives records, builds spans, writes the evidence and exports it."""
