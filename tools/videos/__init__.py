"""Six short films about the engine, drawn frame by frame.

A film is a list of sentences (`narration/NAME.toml`) and a function that draws the
picture of a moment (`scenes/NAME.py`). `voice` speaks the sentences; how long that
takes fixes when each begins, and everything else (subtitles, movements) is keyed to
sentences. What is shown comes from events of the real engine (`events/NAME.json`,
written by `recorders`).
"""
