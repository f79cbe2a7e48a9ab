"""How fast: engines offline and servers online, side by side."""
