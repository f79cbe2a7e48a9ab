"""The library behind ``tools/steps.py``: one file a duty, `book` under them all."""
