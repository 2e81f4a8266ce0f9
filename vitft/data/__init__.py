"""Data handling: scan, inspect, split and decode the images of a folder.

Only `data.augment` needs torch when it is imported.
"""
