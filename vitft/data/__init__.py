"""From a folder of images to arrays: scan, check, split, decode. Nothing here imports torch."""
