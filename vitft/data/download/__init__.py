"""Downloads of archives, known data sets and single images."""
