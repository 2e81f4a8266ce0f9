"""What a user can see, as tables: command lines with their exit codes, words and class names."""
