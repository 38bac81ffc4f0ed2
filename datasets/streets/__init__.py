"""Procedural street video with exact truth."""
