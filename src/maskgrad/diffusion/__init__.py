"""Forward masking, reveal rules, the sampler and its commit map."""
