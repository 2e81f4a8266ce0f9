"""Console, files, run directories, signals, devices and errors: what every package uses."""
