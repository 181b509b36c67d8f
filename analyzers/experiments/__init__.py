"""Experiments: what to expect of a setting before production sees it, and whether a change may go there."""
