"""A small LLM serving engine, written by hand."""
