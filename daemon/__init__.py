"""The daemon: HTTP, command line, environment, files, signals and wire formats."""
