"""Command-line tools of the repository: models, stages, checks, diagrams."""
