"""mlxd as a service of the operating system: the files that describe it, and the tools that run it."""
