"""Console and logging, files, run directories, signals, devices and errors."""
