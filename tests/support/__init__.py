"""What the tests share: a copy of the project to run in, and small checkpoints with known numbers."""
