"""Export formats, which are subclasses of `base.ExportFormat`."""
