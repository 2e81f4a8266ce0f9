"""Console, logging, files, run directories, signals, devices and errors."""
