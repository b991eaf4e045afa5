"""The registry: names, states, leases, and which models stay in memory."""
