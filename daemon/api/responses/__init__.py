"""OpenAI's Responses API, with a bounded store."""
