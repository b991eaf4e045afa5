"""Memory: what the process uses, what it may use, and what a model or a prompt would add."""
