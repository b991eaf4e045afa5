"""Downloads of models from the Hugging Face hub, each in a process of its own."""
