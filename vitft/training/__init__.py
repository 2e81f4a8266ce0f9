"""What `finetune` does: setup, batches, loop, optimiser, resume, final evaluation."""
