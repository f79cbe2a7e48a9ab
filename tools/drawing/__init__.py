"""The book's diagrams: a canvas, and one function for each picture."""
