"""The algorithm-blind loop: collect rollouts, update, checkpoint; and supervised masked-diffusion training."""
