"""Masked views, the scorer, and how scored log-probs become likelihoods of units."""
