"""Engines in processes of their own: the daemon's side, the worker's side, and what crosses between them."""
