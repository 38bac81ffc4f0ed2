"""Procedural signs: pictures of one class each, as drifting streams and as labelled sets."""
