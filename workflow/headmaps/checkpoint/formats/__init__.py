"""The three file formats of checkpoints, each read from byte ranges and trusted in nothing."""
