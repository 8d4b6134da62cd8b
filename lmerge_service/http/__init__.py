"""The HTTP side of whoever merges: who may ask, health, metrics, and the control API."""
