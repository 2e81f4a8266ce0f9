"""`vitft label`: a page in the browser that turns unlabelled pictures into a table of labels."""
