"""Engines: one loaded model each, on a thread and stream of its own, decoding many requests together."""
