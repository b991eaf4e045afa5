"""The OpenAI API: chat, completions and models."""
