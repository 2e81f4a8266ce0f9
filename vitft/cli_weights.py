"""`vitft weights`: what pretrained weights there are, and what is in a file."""
