"""What trainer and verifier must agree on, and nothing else."""
