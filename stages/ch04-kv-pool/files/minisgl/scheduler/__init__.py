"""Who runs when, and on which pages."""
