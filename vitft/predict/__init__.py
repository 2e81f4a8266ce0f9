"""Images in, answers out: engines, predictions, output files, evaluation."""
