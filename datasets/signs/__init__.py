"""Rendered signs: images of one class each, as drifting streams and as labelled sets."""
