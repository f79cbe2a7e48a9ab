"""The six scene scripts."""
