"""Guards and flow control: what holds a replica back so that one cannot harm all."""
