"""The registry of names, and what is generated from it: constants and the reference page. See `__main__.py`."""
