"""Download of archives, known datasets and single images."""
