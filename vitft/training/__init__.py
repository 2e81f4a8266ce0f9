"""Fine-tuning runs: setup, batches, training loop, optimiser, resuming and final evaluation."""
