"""How folders, tables, images and weights are read; each row is an input as people have it."""
