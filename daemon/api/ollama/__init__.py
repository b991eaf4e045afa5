"""The Ollama API: chat, generate, embed, and what is there."""
