"""`vitft label`: from unlabelled pictures to a table of labels, on a page in the browser."""
