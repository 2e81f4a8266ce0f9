"""Data handling without torch: scan, inspect, split and decode the images of a folder."""
