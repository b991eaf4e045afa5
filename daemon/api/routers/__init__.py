"""What other model routers answer: llama.cpp and LM Studio."""
