"""Data handling: scan, inspect, split and decode the images of a folder.

Only `data.augment` imports torch at import time.
"""
