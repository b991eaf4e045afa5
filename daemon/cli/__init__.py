"""The `mlxd` command line."""
