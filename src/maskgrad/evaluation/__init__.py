"""Held-out accuracy with the sampler of training, and the statistics around it."""
