"""The HTTP side of a merging process: access, health, metrics, and the control API."""
