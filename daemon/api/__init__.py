"""The facades: each translates one wire format to and from the engine's requests and outputs."""
