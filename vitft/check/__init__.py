"""Checks of a folder of images: findings, and what to do about each."""
