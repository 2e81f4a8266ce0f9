"""Datasets of tar shards and Hugging Face datasets, read through a local copy in the cache."""
