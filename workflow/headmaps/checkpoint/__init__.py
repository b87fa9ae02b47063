"""Checkpoints: where the bytes come from (stores) and what they mean (formats), one tensor at a time."""
