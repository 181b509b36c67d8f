"""All output: an analysis to text, or to one JSON object."""
