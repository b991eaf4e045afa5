"""The Anthropic API: messages and their token counts."""
